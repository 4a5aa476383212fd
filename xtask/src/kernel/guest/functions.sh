# What scenarios are made of. From the environment: ADDRESS PORT NQN HOST_NQN HOST_ID SELF_TEST ...

tell() { echo "$*" >&3; }

# Says why the step fails, and fails.
why() { echo "$*" >/tmp/why; return 1; }

# check NAME COMMAND...: one step, reported. A step that fails ends the scenario.
check() {
    step_name=$1
    shift
    : >/tmp/why
    tell "step $step_name"
    echo "--- $step_name: $*"
    if "$@"; then
        tell "ok $step_name"
    else
        reason=$(head -n 1 /tmp/why)
        echo "--- the end of the kernel's log"
        dmesg | tail -n 30
        tell "failed $step_name: ${reason:-\`$*\` did not succeed}"
        exit 1
    fi
}

# skip NAME WHY: something that this kernel, or the kernel's own target, cannot do. Never for our own target.
skip() { step_name=$1; shift; tell "skipped $step_name: $*"; }

# Asks the harness to do something to the target, and waits until it is done.
please() {
    tell "please $*"
    read -r answer reason <&4 || return 1
    case $answer in
    yes) ;;
    yourself) nvmet_please "$@" ;;
    *) why "asked for \`$*\`: ${reason:-no}" ;;
    esac
}

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    rounds=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        rounds=$((rounds - 1))
        [ $rounds -gt 0 ] || return 1
        sleep 0.1
    done
}

not() { ! "$@"; }

# The controllers of a subsystem: nvme0 nvme1 ...
controllers_of() {
    for controller in /sys/class/nvme/nvme*; do
        [ "$(cat "$controller/subsysnqn" 2>/dev/null)" = "$1" ] && echo "${controller##*/}"
    done
    return 0
}
has_controller() { [ -n "$(controllers_of "$1")" ]; }

# The block device of a subsystem's namespace: nvme0n1. Paths that multipath hides (nvme0c0n1) are passed over.
device_of() {
    for subsystem in /sys/class/nvme-subsystem/nvme-subsys*; do
        [ "$(cat "$subsystem/subsysnqn" 2>/dev/null)" = "$1" ] || continue
        for namespace in "$subsystem"/nvme*n* "$subsystem"/nvme*/nvme*n*; do
            name=${namespace##*/}
            case $name in *'*'* | *c*) continue ;; esac
            [ "$(cat "$namespace/nsid" 2>/dev/null)" = "$2" ] && [ -b "/dev/$name" ] && echo "$name" && return 0
        done
    done
    return 1
}

controller_state() { cat "/sys/class/nvme/$CONTROLLER/state" 2>/dev/null; }
is_live() { [ "$(controller_state)" = live ]; }

dial() { nvme connect -t tcp -a "$ADDRESS" -s "$PORT" "$@"; }

# Leaves the block device in DEVICE (/dev/nvme0n1) and its controller in CONTROLLER (nvme0).
connect_to() {
    SUBSYSTEM=$1
    shift
    dial -n "$SUBSYSTEM" "$@" || why "nvme connect $*: $(dmesg | grep nvme | tail -n 1)" || return 1
    wait_for 20 device_of "$SUBSYSTEM" 1 || why "namespace 1 did not appear within 20 s" || return 1
    DEVICE=/dev/$(device_of "$SUBSYSTEM" 1)
    CONTROLLER=$(controllers_of "$SUBSYSTEM" | head -n 1)
    BLOCK=$(cat "/sys/class/block/${DEVICE##*/}/queue/logical_block_size")
}
connect() { connect_to "$NQN" "$@"; }

# completed FIELD: of the device's `stat`, 1 for reads and 5 for writes. Older kernels (6.1) count them at the paths alone.
completed() {
    cat "/sys/class/block/${DEVICE##*/}/stat" "/sys/class/nvme/$CONTROLLER"/nvme*c*n*/stat 2>/dev/null |
        awk -v field="$1" '$field > most { most = $field } END { print most + 0 }'
}

disconnect() {
    nvme disconnect -n "$SUBSYSTEM" || return 1
    wait_for 20 not has_controller "$SUBSYSTEM" || why "the controller is still there 20 s after the disconnect"
}

# verified_io DEVICE_OR_FILE MEBIBYTES [OPTION...]: writes with checksums inside, and reads all of it back.
verified_io() {
    where=$1
    size=$2
    shift 2
    fio --name=verified --filename="$where" --size="${size}m" --rw=randwrite --bsrange=4k-64k --ioengine=libaio --direct=1 \
        --iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --eta=never --output=/tmp/fio "$@"
    status=$?
    grep -E 'err=|READ:|WRITE:|verify' /tmp/fio
    [ $status = 0 ] || why "fio: $(grep -iE 'verify|error|fio:' /tmp/fio | head -n 1)"
}

# Complaints of the kernel since this scenario began; LOST_TARGET=1 where the target goes away on purpose.
kernel_complaints() {
    dmesg | awk '/guest: scenario/ { text = ""; next } { text = text $0 "\n" } END { printf "%s", text }' >/tmp/log
    grep -E 'BUG:|WARNING:|Oops|Call Trace|blocked for more than|EXT4-fs (error|warning)|XFS .*([Cc]orrupt|[Ee]rror)' /tmp/log
    [ "${LOST_TARGET:-0}" = 1 ] ||
        grep -E 'I/O error|nvme.*([Tt]imeout|timed out|digest error|[Ff]ailed|reset|[Uu]nexpected|[Ii]nvalid|bogus|out of sync)' /tmp/log
}
kernel_is_quiet() {
    complaints=$(kernel_complaints)
    [ -z "$complaints" ] && return 0
    echo "$complaints"
    why "the kernel complains: $(echo "$complaints" | head -n 1)"
}

# A bit of a decimal or 0x number in `nvme id-ctrl`: has_bit FIELD BIT.
has_bit() {
    value=$(nvme id-ctrl "/dev/$CONTROLLER" | awk -v field="$1" '$1 == field { print $3; exit }')
    [ $(((${value:-0} >> $2) & 1)) = 1 ]
}

# offers NAME FIELD BIT WHAT: whether the target has an optional command. Our own target must have all that we ask for.
offers() {
    has_bit "$2" "$3" && return 0
    if [ "$SELF_TEST" = 1 ]; then
        skip "$1" "the kernel's own target has no $4"
    else
        check "$1" why "the controller does not offer $4 (bit $3 of $2)"
    fi
    return 1
}

# Whatever a scenario leaves behind.
tidy_up() {
    umount /mnt 2>/dev/null
    nvme disconnect-all
    rm -f /tmp/fio* /tmp/a /tmp/b
    [ "$SELF_TEST" = 0 ] || nvmet_reset
} >/dev/null 2>&1
