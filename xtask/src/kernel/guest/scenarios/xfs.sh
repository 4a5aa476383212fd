. /job/scenarios/filesystem.sh
make_file_system() { mkfs.xfs -q -f "$DEVICE"; }
check_file_system() { xfs_repair -n "$DEVICE"; }
life_of_a_file_system xfs
