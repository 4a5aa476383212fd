sectors() { cat "/sys/class/block/${DEVICE##*/}/size"; }
has_sectors() { [ "$(sectors)" = "$1" ]; }
resized() {
    please resize 1 "$1" || return 1
    wait_for 20 has_sectors $(($1 / 512)) || why "the kernel still sees $(sectors) sectors, not $(($1 / 512))"
}
last_block() {
    blocks=$(($(sectors) * 512 / BLOCK))
    dd if=/dev/urandom of=/tmp/a bs="$BLOCK" count=1 2>/dev/null
    dd if=/tmp/a of="$DEVICE" bs="$BLOCK" seek=$((blocks - 1)) oflag=direct conv=notrunc || return 1
    dd if="$DEVICE" of=/tmp/b bs="$BLOCK" skip=$((blocks - 1)) iflag=direct || return 1
    cmp /tmp/a /tmp/b || why "the last block reads back differently"
}

# Writes and reads back, beside the changes of size, what lies before all of them.
start_load() {
    verified_io "$DEVICE" 24 --loops=2 >/tmp/load 2>&1 &
    LOAD=$!
    wait_for 20 has_written || why "nothing was written within 20 s"
}
has_written() { [ "$(completed 5)" -gt 50 ]; }
is_loaded() { kill -0 $LOAD || why "the load was over before the sizes had changed"; }
load_ends() {
    wait_for 240 not kill -0 $LOAD || why "the load hangs" || return 1
    wait $LOAD || { cat /tmp/load; why "what was written during the changes reads back differently"; }
}

check connect connect
BEFORE=$(($(sectors) * 512))
check write-before dd if=/dev/zero of="$DEVICE" bs=1M count=4 oflag=direct
check load start_load
check grow resized $((BEFORE + (64 << 20)))
check last-block-after-growing last_block
check shrink resized $BEFORE
check last-block-after-shrinking last_block
check load-goes-on is_loaded
check load-is-right load_ends
check disconnect disconnect
