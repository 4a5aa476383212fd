# A file system's life, for ext4.sh and xfs.sh, which say how it is made and checked.
write_files() {
    for number in 0 1 2 3 4 5 6 7 8 9; do
        # Odd lengths among them.
        dd if=/dev/urandom of=/mnt/file$number bs=$((1021 + number * 977)) count=$((1 + number * 29)) 2>/dev/null || return 1
    done
    sync
    (cd /mnt && sha256sum file*) >/tmp/sums
}
files_are_whole() { (cd /mnt && sha256sum -c "$1") || why "a file's checksum differs"; }
delete_half() {
    rm /mnt/file[02468] /mnt/verified && sync
    grep '[13579]$' /tmp/sums >/tmp/sums-left
}
trim() {
    fstrim -v /mnt >/tmp/a || return 1
    cat /tmp/a
    ! grep -q '(0 bytes)\|: 0 B' /tmp/a || why "nothing was trimmed"
}
mount_it() { mount -t "$1" "$DEVICE" /mnt; }

life_of_a_file_system() {
    modprobe -q "$1"
    check connect connect -g -G
    check mkfs make_file_system
    check mount mount_it "$1"
    check write-files write_files
    check fio verified_io /mnt/verified 24
    check unmount umount /mnt
    check fsck check_file_system
    check disconnect disconnect
    check reconnect connect
    check mount-again mount_it "$1"
    check files-are-whole files_are_whole /tmp/sums
    check delete delete_half
    check fstrim trim
    check files-left-are-whole files_are_whole /tmp/sums-left
    check unmount-again umount /mnt
    check fsck-again check_file_system
    check disconnect-again disconnect
}
