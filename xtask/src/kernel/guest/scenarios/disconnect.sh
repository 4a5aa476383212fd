# The host leaves while it writes; the target must take it calmly, and the host back.
LOST_TARGET=1
start_writing() {
    fio --name=writer --filename="$DEVICE" --size=64m --rw=randwrite --bs=16k --ioengine=libaio --direct=1 --iodepth=16 \
        --time_based --runtime=120 --eta=never --output=/tmp/fio &
    WRITER=$!
    wait_for 20 has_written || why "nothing was written within 20 s"
}
has_written() { [ "$(completed 5)" -gt 50 ]; }
writer_ends() { wait_for 30 not kill -0 $WRITER || why "the writer hangs"; }
reset_it() { nvme reset "/dev/$CONTROLLER" && wait_for 30 is_live || why "the controller is $(controller_state) after a reset"; }

check connect connect -g -G
check write start_writing
check disconnect disconnect
check writer-ends writer_ends
check reconnect connect
check io verified_io "$DEVICE" 4
check reset reset_it
check io-after-reset verified_io "$DEVICE" 4
check disconnect-again disconnect
