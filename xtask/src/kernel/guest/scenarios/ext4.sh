. /job/scenarios/filesystem.sh
make_file_system() { mkfs.ext4 -q -F "$DEVICE"; }
check_file_system() { e2fsck -f -n "$DEVICE"; }
life_of_a_file_system ext4
