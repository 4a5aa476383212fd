shows() { nvme "$@" >/tmp/a; status=$?; head -n 40 /tmp/a; return $status; }
listed() { nvme list | tee /tmp/a; grep -q "^$DEVICE " /tmp/a || why "nvme list does not show $DEVICE"; }
path_listed() { nvme list-subsys | tee /tmp/a; grep -q "$NQN" /tmp/a || why "nvme list-subsys does not show $NQN"; }
same_nqn() { nvme id-ctrl "/dev/$CONTROLLER" | grep -q "^subnqn *: $NQN\$" || why "subnqn differs from what was connected"; }
size_matches() {
    size=$(nvme id-ns "$DEVICE" -n 1 | awk '$1 == "nsze" { print $3 }')
    sectors=$(cat "/sys/class/block/${DEVICE##*/}/size")
    [ $((size * BLOCK)) = $((sectors * 512)) ] || why "nsze is $size blocks of $BLOCK, the kernel sees $sectors sectors"
}
has_identifier() {
    nvme ns-descs "/dev/$CONTROLLER" -n 1 | tee /tmp/a
    grep -qE 'uuid|nguid|eui64' /tmp/a || why "the namespace has no unique identifier"
}
past_the_end_is_refused() {
    blocks=$(($(cat "/sys/class/block/${DEVICE##*/}/size") * 512 / BLOCK))
    ! nvme read "$DEVICE" -s "$blocks" -c 0 -z "$BLOCK" -d /tmp/b || why "a read past the end succeeded"
}
unknown_is_refused() { ! nvme "$@" || why "\`$*\` succeeded"; }

check connect connect
check list listed
check list-subsys path_listed
check id-ctrl shows id-ctrl "/dev/$CONTROLLER"
check subnqn same_nqn
check id-ns shows id-ns "$DEVICE" -n 1
check size size_matches
check ns-descs has_identifier
check list-ns shows list-ns "/dev/$CONTROLLER"
check smart-log shows smart-log "/dev/$CONTROLLER"
check error-log shows error-log "/dev/$CONTROLLER" -e 1
check effects-log shows effects-log "/dev/$CONTROLLER"
check changed-namespaces shows changed-ns-list-log "/dev/$CONTROLLER"
if [ "$SELF_TEST" = 0 ]; then
    check firmware-log shows fw-log "/dev/$CONTROLLER"
fi
offers ana-log cmic 3 "asymmetric namespace access" && check ana-log shows ana-log "/dev/$CONTROLLER"
for feature in 7 0xb 0xf; do check "get-feature-$feature" shows get-feature "/dev/$CONTROLLER" -f $feature; done
check kernel-log-so-far kernel_is_quiet
LOST_TARGET=1
check past-the-end past_the_end_is_refused
check unknown-admin-command unknown_is_refused admin-passthru "/dev/$CONTROLLER" -o 0xc7
check unknown-command unknown_is_refused io-passthru "$DEVICE" -o 0x7f -n 1
check unknown-log unknown_is_refused get-log "/dev/$CONTROLLER" -i 0x7e -l 64
check still-there shows id-ctrl "/dev/$CONTROLLER"
check disconnect disconnect
