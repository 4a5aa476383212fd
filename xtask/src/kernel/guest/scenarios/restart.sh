# The target is killed while it is written to, and comes back: nothing that was acknowledged may be missing.
LOST_TARGET=1
start_writing() {
    fio --name=verified --filename="$DEVICE" --size=16m --rw=randwrite --bs=16k --rate_iops=100 --ioengine=libaio --direct=1 \
        --iodepth=8 --verify=crc32c --verify_fatal=1 --do_verify=1 --eta=never --output=/tmp/fio &
    WRITER=$!
    wait_for 20 has_written || why "nothing was written within 20 s"
}
has_written() { [ "$(completed 5)" -gt 100 ]; }
notices() { wait_for 40 not is_live || why "the host did not notice within 40 s"; }
retries() { wait_for 40 has_retried || why "the host does not try to reconnect"; }
has_retried() { dmesg | awk '/guest: scenario/ { found = 0 } /Failed reconnect attempt/ { found = 1 } END { exit !found }'; }
still_writing() { kill -0 $WRITER || { cat /tmp/fio; why "the writer gave up while the target was away"; }; }
comes_back() { wait_for 90 is_live || why "the controller is $(controller_state) 90 s after the target's return"; }
writer_ends_well() {
    wait $WRITER
    status=$?
    cat /tmp/fio
    [ $status = 0 ] || why "fio: $(grep -iE 'verify|error|fio:' /tmp/fio | head -n 1)"
}
read_back() {
    fio --name=verified --filename="$DEVICE" --size=16m --rw=randread --bs=16k --ioengine=libaio --direct=1 --iodepth=8 \
        --verify=crc32c --verify_fatal=1 --eta=never --output=/tmp/fio || { cat /tmp/fio; why "what was written is not there"; }
}

check connect connect -k 5 -l 180 -c 2
check write start_writing
check kill-target please kill-target
check host-notices notices
check host-retries retries
check writer-waits still_writing
check restart-target please restart-target
check host-reconnects comes_back
check writer-ends-well writer_ends_well
check read-back read_back
check disconnect disconnect
