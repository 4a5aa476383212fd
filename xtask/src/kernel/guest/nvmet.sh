# The kernel's own target within the guest, for the harness's self-test: known to be good, so a failure is the harness's.
# The traffic leaves the guest all the same, to a relay of the harness, and comes back in.

CONFIG=/sys/kernel/config/nvmet
BACKING_BYTES=$((512 << 20))

nvmet_start() {
    modprobe -a loop configfs nvmet nvmet-tcp || return 1
    # Blocks of 512 bytes, which make small golden PDUs.
    modprobe brd rd_nr=1 rd_size=1024 || return 1
    mount -t configfs configfs /sys/kernel/config || return 1
    mkdir /run/backing && mount -t tmpfs -o size=1200m tmpfs /run/backing || return 1
    truncate -s $BACKING_BYTES /run/backing/open /run/backing/locked
    # A device, because a file in memory cannot be told to write zeroes.
    losetup /dev/loop0 /run/backing/open || return 1
    nvmet_subsystem "$NQN" 1 /dev/loop0 || return 1
    nvmet_subsystem "$AUTH_NQN" 2 /run/backing/locked || return 1
    nvmet_subsystem "$GOLDEN_NQN" 3 /dev/ram0 || return 1
    if mkdir "$CONFIG/hosts/$HOST_NQN" && [ -f "$CONFIG/hosts/$HOST_NQN/dhchap_key" ]; then
        echo "$HOST_KEY" >"$CONFIG/hosts/$HOST_NQN/dhchap_key"
        echo "$CONTROLLER_KEY" >"$CONFIG/hosts/$HOST_NQN/dhchap_ctrl_key"
        echo 'hmac(sha256)' >"$CONFIG/hosts/$HOST_NQN/dhchap_hash"
        echo ffdhe2048 >"$CONFIG/hosts/$HOST_NQN/dhchap_dhgroup"
    fi
    echo 0 >"$CONFIG/subsystems/$AUTH_NQN/attr_allow_any_host"
    ln -s "$CONFIG/hosts/$HOST_NQN" "$CONFIG/subsystems/$AUTH_NQN/allowed_hosts/$HOST_NQN"
    port=$CONFIG/ports/1
    mkdir $port || return 1
    echo ipv4 >$port/addr_adrfam
    echo tcp >$port/addr_trtype
    echo 0.0.0.0 >$port/addr_traddr
    echo 4420 >$port/addr_trsvcid
    # Small, so that a recorded write which the target must ask for is small too.
    echo 2048 >$port/param_inline_data_size
    for nqn in "$NQN" "$AUTH_NQN" "$GOLDEN_NQN"; do
        ln -s "$CONFIG/subsystems/$nqn" "$port/subsystems/$nqn" || return 1
    done
}

# nvmet_subsystem NQN NUMBER BACKING
nvmet_subsystem() {
    subsystem=$CONFIG/subsystems/$1
    mkdir "$subsystem" || return 1
    echo 1 >"$subsystem/attr_allow_any_host"
    echo "selftest$2" >"$subsystem/attr_serial"
    nvmet_namespace "$subsystem" 1 "$2" "$3"
}

# nvmet_namespace SUBSYSTEM NSID NUMBER BACKING
nvmet_namespace() {
    namespace=$1/namespaces/$2
    mkdir "$namespace" || return 1
    echo "6f757462-6f61-7264-0000-00000000000$3" >"$namespace/device_uuid"
    echo "6f7574626f617264000000000000000$3" >"$namespace/device_nguid"
    # A file in memory has no direct I/O; for a device, this would have it treated as a file.
    case $4 in /dev/*) ;; *) echo 1 >"$namespace/buffered_io" ;; esac
    echo -n "$4" >"$namespace/device_path"
    echo 1 >"$namespace/enable"
}

# Does what a scenario asks of the target. The harness itself sees to `kill-target`, by cutting its relay.
nvmet_please() {
    namespace=$CONFIG/subsystems/$NQN/namespaces/$2
    case $1 in
    resize)
        truncate -s "$3" /run/backing/open && losetup -c /dev/loop0 && echo 1 >"$namespace/revalidate_size"
        ;;
    remove) echo 0 >"$namespace/enable" ;;
    event)
        # A second namespace comes, which is something to tell the host.
        nvmet_namespace "$CONFIG/subsystems/$GOLDEN_NQN" 2 4 /run/backing/locked
        ;;
    no-event) rmdir "$CONFIG/subsystems/$GOLDEN_NQN/namespaces/2" ;;
    *) why "the self-test cannot do \`$*\`" ;;
    esac
}

nvmet_reset() {
    nvmet_please resize 1 $BACKING_BYTES
    echo 1 >"$CONFIG/subsystems/$NQN/namespaces/1/enable"
}
