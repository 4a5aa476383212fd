# A namespace is taken away while it is read and written: the device goes, its users get an error, and nothing hangs.
LOST_TARGET=1
start_reading() {
    fio --name=reader --filename="$DEVICE" --size=64m --rw=randrw --bs=4k --ioengine=libaio --direct=1 --iodepth=4 \
        --time_based --runtime=120 --eta=never --output=/tmp/fio &
    READER=$!
    wait_for 20 has_read || why "nothing was read within 20 s"
}
has_read() { [ "$(completed 1)" -gt 50 ]; }
goes_away() { wait_for 30 not device_of "$SUBSYSTEM" 1 || why "the device is still there after 30 s"; }
reader_ends() {
    wait_for 30 not kill -0 $READER || why "the reader hangs" || return 1
    ! wait $READER || why "the reader saw no error"
}

check connect connect
check read start_reading
check remove please remove 1
check device-goes goes_away
check reader-ends reader_ends
check controller-stays is_live
check disconnect disconnect
