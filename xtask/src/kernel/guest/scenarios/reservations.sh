# One host registers, reserves, is seen in the report, and lets go.
report_has() {
    nvme resv-report "$DEVICE" -n 1 -e -o json >/tmp/b || return 1
    cat /tmp/b
    value=$(sed -n "s/.*\"$1\" *: *\([0-9]*\).*/\1/p" /tmp/b | head -n 1)
    [ "$value" = "$2" ] || why "the report says $1 is ${value:-missing}, not $2"
}
refused() { ! nvme "$@" || why "\`nvme $*\` succeeded"; }

check connect connect
if offers reservations oncs 5 reservations; then
    check acquire-unregistered refused resv-acquire "$DEVICE" -n 1 -c 0x1234 -t 1 -a 0
    check register nvme resv-register "$DEVICE" -n 1 -k 0x1234 -r 0
    check one-registrant report_has regctl 1
    check acquire nvme resv-acquire "$DEVICE" -n 1 -c 0x1234 -t 1 -a 0
    check reserved report_has rtype 1
    check holder-writes dd if=/dev/zero of="$DEVICE" bs=64k count=1 oflag=direct
    check release-with-another-key refused resv-release "$DEVICE" -n 1 -c 0x9999 -t 1 -a 0
    check release nvme resv-release "$DEVICE" -n 1 -c 0x1234 -t 1 -a 0
    check not-reserved report_has rtype 0
    check unregister nvme resv-register "$DEVICE" -n 1 -c 0x1234 -r 1
    check no-registrant report_has regctl 0
    LOST_TARGET=1
fi
check disconnect disconnect
