# A volume: what the target serves in this scenario is kept by three chunk servers.
. /job/scenarios/filesystem.sh
make_file_system() { mkfs.ext4 -q -F "$DEVICE"; }
check_file_system() { e2fsck -f -n "$DEVICE"; }
is_thin() { [ "$(cat "/sys/class/block/${DEVICE##*/}/queue/discard_max_bytes")" -gt 0 ] || why "it cannot be trimmed"; }
# Of 512 bytes.
sectors() { cat "/sys/class/block/${DEVICE##*/}/size"; }
sixteen_gibibytes() { [ "$(sectors)" = $((16 << 21)) ] || why "it has $(sectors) sectors"; }

check connect connect
check size sixteen_gibibytes
check thin is_thin
check raw verified_io "$DEVICE" 64
# The longest request is one command.
takes_a_mebibyte() {
    longest=$(cat "/sys/class/block/${DEVICE##*/}/queue/max_hw_sectors_kb")
    [ "$longest" = 1024 ] || why "the kernel sends at most $longest KiB at once"
}
check takes-a-mebibyte takes_a_mebibyte
check raw-long verified_io "$DEVICE" 128 --bssplit=4k/40:128k/30:1m/30

# Another volume is made, grown and removed while the kernel is connected, which sees all of it.
second() { device_of "$SUBSYSTEM" 2; }
is_there() { [ -n "$(second)" ]; }
is_gone() { ! is_there; }
second_sectors() { cat "/sys/class/block/$(second)/size"; }
second_has() { [ "$(second_sectors)" = "$1" ]; }
make_second() {
    please volume create data $((256 << 20)) || return 1
    wait_for 20 is_there || why "the kernel does not see the second volume"
    wait_for 20 second_has $((256 << 11)) || why "it has $(second_sectors) sectors"
}
grow_second() {
    please volume resize data $((512 << 20)) || return 1
    wait_for 20 second_has $((512 << 11)) || why "the kernel still sees $(second_sectors) sectors"
}
is_another() {
    dd if="/dev/$(second)" of=/tmp/second bs=1M count=4 iflag=direct || return 1
    cmp -n $((4 << 20)) /tmp/second /dev/zero || why "a new volume has something"
}
remove_second() {
    please volume rm data || return 1
    wait_for 20 is_gone || why "the kernel still sees the volume that was removed"
}
check make-second make_second
check second-is-empty is_another
check second-io verified_io "/dev/$(second)" 32
check grow-second grow_second
check first-goes-on verified_io "$DEVICE" 16
check remove-second remove_second

# One of small blocks, whose requests are anything from one of them to 1 MiB.
small() { device_of "$SUBSYSTEM" 3; }
small_is_there() { [ -n "$(small)" ]; }
make_small() {
    please volume create small $((256 << 20)) 512 || return 1
    wait_for 20 small_is_there || why "the kernel does not see the volume of small blocks"
    length=$(cat "/sys/class/block/$(small)/queue/logical_block_size")
    [ "$length" = 512 ] || why "its blocks have $length bytes"
}
small_is_gone() { ! small_is_there; }
remove_small() {
    please volume rm small || return 1
    wait_for 20 small_is_gone || why "the kernel still sees the volume of small blocks"
}
check make-small make_small
check small-io verified_io "/dev/$(small)" 48 --bssplit=512/30:1536/20:4k/20:64k/20:1m/10
check remove-small remove_small
check first-is-there verified_io "$DEVICE" 16
check disconnect disconnect
life_of_a_file_system ext4

# One process after the other is killed while a file system is written to, and comes back: nothing that was acknowledged may be missing, and
# the file system is whole.
start_writing() {
    fio --name=verified --filename=/mnt/verified --size=48m --rw=randwrite --bs=16k --rate_iops=60 --ioengine=libaio --direct=1 \
        --iodepth=8 --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 --eta=never --output=/tmp/fio &
    WRITER=$!
    wait_for 40 has_written || why "nothing was written within 40 s"
}
has_written() { [ "$(completed 5)" -gt $((BEFORE + 50)) ]; }
goes_on() {
    BEFORE=$(completed 5)
    wait_for 90 has_gone_on || why "writes do not go on: $(completed 5), $BEFORE before, the controller is $(controller_state)"
}
has_gone_on() { [ "$(completed 5)" -gt $((BEFORE + 40)) ] || ! kill -0 $WRITER 2> /dev/null; }
still_writing() { kill -0 $WRITER || why "the writer was done before everything had been killed: $(tail -n 1 /tmp/fio)"; }
writer_ends_well() {
    wait $WRITER
    status=$?
    cat /tmp/fio
    [ $status = 0 ] || why "fio: $(grep -iE 'verify|error|fio:' /tmp/fio | head -n 1)"
}
LOST_TARGET=1
check connect-to-kill connect -k 5 -l 180 -c 2
check mkfs-to-kill make_file_system
check mount-to-kill mount_it ext4
check write-files-to-kill write_files
BEFORE=$(completed 5)
check write start_writing
for round in 1 2 3; do
    for process in "chunkserver chunk-$round" host card; do
        name=$(echo "$process" | tr ' ' '-')
        # Two words of the request.
        check "kill-$name-$round" please kill-one $process
        check "goes-on-after-$name-$round" goes_on
    done
done
check still-writing still_writing
check writer-ends-well writer_ends_well
check files-are-whole-after-kills files_are_whole /tmp/sums
check unmount-after-kills umount /mnt
check fsck-after-kills check_file_system
check disconnect-killed disconnect
