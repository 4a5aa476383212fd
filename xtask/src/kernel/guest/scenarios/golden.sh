# Every kind of PDU once, small, for the record. The harness tells by `please record NAME` which bytes are whose.
pattern() { awk -v bytes="$1" 'BEGIN { for (i = 0; i < bytes; i++) printf "%c", 65 + int(i / 64) % 26 }'; }
small() { nvme "$1" "$DEVICE" -s "$2" -c 0 -z 512 -d /tmp/a; }
large() { nvme write "$DEVICE" -s 16 -c 7 -z 4096 -d /tmp/b; }
admin() { nvme "$@" >/dev/null; }
# Keep Alive comes by itself, at half its time: wait until it has.
idle_for_keep_alive() { sleep 3; }
event() { please event && wait_for 10 device_of "$GOLDEN_NQN" 2 && please no-event && wait_for 10 not device_of "$GOLDEN_NQN" 2; }
session() {
    label=$1
    shift
    check "record-$label" please record "$label"
    check "discover-$label" nvme discover -t tcp -a "$ADDRESS" -s "$PORT" "$@"
    check "connect-$label" connect_to "$GOLDEN_NQN" -i 1 -k 4 "$@"
    pattern 512 >/tmp/a
    pattern 4096 >/tmp/b
    check "write-$label" small write 0
    check "write-by-request-$label" large
    check "read-$label" small read 0
    check "flush-$label" nvme flush "$DEVICE" -n 1
    check "write-zeroes-$label" nvme write-zeroes "$DEVICE" -s 0 -c 0
    check "deallocate-$label" nvme dsm "$DEVICE" -n 1 -d -s 0 -b 1
    check "smart-log-$label" admin smart-log "/dev/$CONTROLLER"
    check "ana-log-$label" admin ana-log "/dev/$CONTROLLER"
    check "event-$label" event
    check "idle-$label" idle_for_keep_alive
    check "disconnect-$label" disconnect
}

session plain
session header-digest -g
session data-digest -G
session digests -g -G
if grep -q dhchap_secret /dev/nvme-fabrics; then
    check record-authentication please record authentication
    check authenticate connect_to "$AUTH_NQN" -i 1 -S "$HOST_KEY" -C "$CONTROLLER_KEY"
    check disconnect-authentication disconnect
fi
check record-nothing please record nothing
