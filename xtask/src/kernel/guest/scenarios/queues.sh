queue_count() {
    queues=$(cat "/sys/class/nvme/$CONTROLLER/queue_count")
    # The admin queue counts.
    [ "$queues" = "$1" ] || why "$queues queues, not $1"
}

check connect-four connect -i 4
check four-queues queue_count 5
check io-on-four verified_io "$DEVICE" 4 --numjobs=4 --offset_increment=4m --group_reporting
check disconnect disconnect
check connect-one connect -i 1 -g -G
check one-queue queue_count 2
check io-on-one verified_io "$DEVICE" 4
check disconnect-one disconnect
