# Storage functions over files of a mounted namespace, by way of this kernel.
agree() { /job/lib/ld-linux-x86-64.so.2 --library-path /job/lib /job/agree "$@" >/tmp/agree 2>&1; }
agrees() {
    agree /mnt "$@"
    status=$?
    cat /tmp/agree
    [ $status = 0 ] || why "$(tail -n 1 /tmp/agree)"
}
# disagrees WITH SAYING OPTION...: with this bug planted it must be seen that answers are wrong.
disagrees() {
    bug=$1
    saying=$2
    shift 2
    export OB_PLANT=$bug
    agree /mnt "$@"
    status=$?
    unset OB_PLANT
    cat /tmp/agree
    [ $status != 0 ] || why "nobody noticed $bug" || return 1
    grep -q "$saying" /tmp/agree || why "$bug: $(tail -n 1 /tmp/agree)"
}
make_ext4() { mkfs.ext4 -q -F "$DEVICE"; }
make_xfs() { mkfs.xfs -q -f "$DEVICE"; }
check_ext4() { e2fsck -f -n "$DEVICE"; }
check_xfs() { xfs_repair -n "$DEVICE"; }

check connect connect
for kind in ext4 xfs; do
    modprobe -q $kind
    check $kind-mkfs make_$kind
    check $kind-mount mount -t $kind "$DEVICE" /mnt
    check $kind-agrees-by-io-uring agrees 15 1
    check $kind-agrees-by-ioctl agrees 8 2 ioctl
    check $kind-lease-skipped disagrees lease-skipped 'strange\|two versions\|was written before' 60 3
    check $kind-after-check-skipped disagrees after-check-skipped 'strange\|two versions\|was written before' 120 4
    check $kind-unmount umount /mnt
    check $kind-fsck check_$kind
done
check disconnect disconnect
check kernel-is-quiet kernel_is_quiet
