# Commands that a file system seldom sends, from nvme-cli, with what they must do to the data.
BLOCKS=8
write_pattern() { nvme write "$DEVICE" -s 64 -c $((BLOCKS - 1)) -z "$BYTES" -d /tmp/a "$@"; }
read_pattern() { nvme read "$DEVICE" -s 64 -c $((BLOCKS - 1)) -z "$BYTES" -d /tmp/b "$@"; }
reads_as() { read_pattern && cmp "$1" /tmp/b || why "it reads back differently"; }
compare_with() { nvme compare "$DEVICE" -s 64 -c $((BLOCKS - 1)) -z "$BYTES" -d "$1"; }
differs_from() {
    if compare_with "$1" >/tmp/c 2>&1; then why "a comparison with other data succeeded"; return 1; fi
    cat /tmp/c
    grep -qiE 'miscompare|compare[ _]fail' /tmp/c || why "the comparison failed for another reason: $(tail -n 1 /tmp/c)"
}

mark_run() {
    for megabyte in 0 7 9 31 33 39; do
        dd if=/tmp/a of="$DEVICE" bs="$BYTES" count=1 seek=$((megabyte * 1048576 / BYTES)) oflag=direct 2>/dev/null || return 1
    done
}
run_is_zero() {
    for megabyte in 0 7 9 31 33 39; do
        dd if="$DEVICE" of=/tmp/b bs="$BYTES" count=1 skip=$((megabyte * 1048576 / BYTES)) iflag=direct 2>/dev/null || return 1
        cmp /tmp/zeroes /tmp/b || { why "what lies at $megabyte MiB was not zeroed"; return 1; }
    done
}

check connect connect
BYTES=$((BLOCKS * BLOCK))
dd if=/dev/urandom of=/tmp/a bs=$BYTES count=1 2>/dev/null
dd if=/dev/zero of=/tmp/zeroes bs=$BYTES count=1 2>/dev/null
check write write_pattern
check read reads_as /tmp/a
check write-through write_pattern --force-unit-access
check flush nvme flush "$DEVICE" -n 1
if offers compare oncs 0 compare; then
    check compare-equal compare_with /tmp/a
    check compare-different differs_from /tmp/zeroes
fi
if offers write-zeroes oncs 3 "write zeroes"; then
    check write-zeroes nvme write-zeroes "$DEVICE" -s 64 -c $((BLOCKS - 1))
    check reads-zeroes reads_as /tmp/zeroes
    check write-again write_pattern
    check write-zeroes-deallocate nvme write-zeroes "$DEVICE" -s 64 -c $((BLOCKS - 1)) -d
    check reads-zeroes-again reads_as /tmp/zeroes
    # More than the number of blocks of a command can say, where they are small: the kernel has to cut it.
    check mark-a-long-run mark_run
    # Not the shell's own, which knows no zeros.
    check zero-a-long-run /sbin/blkdiscard -z -l 40M "$DEVICE"
    check reads-zeroes-throughout run_is_zero
fi
if offers deallocate oncs 2 "dataset management"; then
    check write-for-deallocate write_pattern
    check deallocate nvme dsm "$DEVICE" -n 1 -d -s 64 -b $BLOCKS
    check read-after-deallocate read_pattern
    check blkdiscard blkdiscard "$DEVICE"
fi
if offers verify oncs 7 verify; then
    check verify nvme verify "$DEVICE" -s 64 -c $((BLOCKS - 1))
fi
check disconnect disconnect
