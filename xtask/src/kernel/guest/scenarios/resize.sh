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

check connect connect
BEFORE=$(($(sectors) * 512))
check write-before dd if=/dev/zero of="$DEVICE" bs=1M count=4 oflag=direct
check grow resized $((BEFORE + (64 << 20)))
check last-block-after-growing last_block
check shrink resized $BEFORE
check last-block-after-shrinking last_block
check disconnect disconnect
