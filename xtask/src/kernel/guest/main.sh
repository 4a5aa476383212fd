# Takes orders from the harness on the second serial line, one a line, and reports there:
#   run SCENARIO   ->   step NAME, then `ok NAME`, `failed NAME: why` or `skipped NAME: why`; at the end `done`
#   off            ->   the machine ends
# What programs print goes to the first serial line, so that it cannot garble the reports.
stty -F /dev/ttyS1 raw -echo
exec 3>/dev/ttyS1 4</dev/ttyS1
. /job/environment
. /job/functions.sh
. /job/nvmet.sh
mkdir -p /etc/nvme /mnt
echo "$HOST_NQN" >/etc/nvme/hostnqn
echo "$HOST_ID" >/etc/nvme/hostid
modprobe -a nvme-fabrics nvme-tcp
if [ "$SELF_TEST" = 1 ] && ! nvmet_start; then
    tell "broken the kernel's own target does not start"
    exit 1
fi
tell "ready $(uname -r)"
while read -r verb name <&4; do
    case $verb in
    run)
        echo "guest: scenario $name" >/dev/kmsg
        # A shell of its own: a scenario that ends early or changes its surroundings leaves the next one alone.
        (. "/job/scenarios/$name.sh"; check kernel-log kernel_is_quiet)
        tidy_up
        tell "done"
        ;;
    off) exit 0 ;;
    esac
done
