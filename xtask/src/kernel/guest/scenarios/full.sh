# A volume that is larger than what its chunk servers have room for: a write that they have no room for is answered with NVMe's own error, reads go
# on, and what is trimmed can be written again.
STEP_MIB=16
FULL=0
# Pieces of the disk that are alike, so that all of it can be compared: of bytes that do not shrink.
piece() { dd if=/dev/urandom of=/tmp/a bs=1M count=$STEP_MIB 2>/dev/null; }
write_piece() { dd if=/tmp/a of="$DEVICE" bs=1M seek=$(($1 * STEP_MIB)) oflag=direct conv=notrunc 2>/tmp/b; }
read_piece() { dd if="$DEVICE" bs=1M skip=$(($1 * STEP_MIB)) count=$STEP_MIB iflag=direct 2>/dev/null | cmp - /tmp/a; }
fill() {
    while [ $FULL -lt 100 ] && write_piece $FULL; do
        FULL=$((FULL + 1))
    done
    grep -q 'No space left on device' /tmp/b || why "after $FULL pieces: $(grep -v records /tmp/b | head -n 1)" || return 1
    # Some of 768 MiB is kept for maintenance.
    [ $FULL -ge 16 ] || why "it was full after $FULL pieces of $STEP_MIB MiB"
}
# Some of all pieces from this one on, and the last: reading all takes minutes in an emulator.
pieces_are_right() {
    number=$1
    while [ "$number" -lt $FULL ]; do
        read_piece "$number" || why "piece $number of $FULL is not what was written" || return 1
        number=$((number + 9))
    done
    read_piece $((FULL - 1)) || why "the last piece of $FULL is not what was written"
}
is_still_full() { not write_piece $FULL || why "it was full, and takes a piece though nothing was trimmed"; }
trim_half() { blkdiscard -l $((FULL / 2 * STEP_MIB))M "$DEVICE"; }
writes_again() { wait_for 120 write_piece 0 || why "a piece that was trimmed cannot be written: $(grep -v records /tmp/b | head -n 1)"; }
halves_are_right() {
    read_piece 0 || why "what was written after the trim is not there" || return 1
    pieces_are_right $((FULL / 2))
}
make_file_system() { blkdiscard "$DEVICE" && wait_for 120 mkfs.ext4 -q -F "$DEVICE"; }
check_file_system() { e2fsck -f -n "$DEVICE"; }

check connect connect
check piece piece
check fill fill
check reads-go-on pieces_are_right 0
check is-still-full is_still_full
check trim-half trim_half
check writes-again writes_again
check halves-are-right halves_are_right
check mkfs make_file_system
check mount mount "$DEVICE" /mnt
check fio verified_io /mnt/verified 32
check unmount umount /mnt
check fsck check_file_system
check disconnect disconnect
