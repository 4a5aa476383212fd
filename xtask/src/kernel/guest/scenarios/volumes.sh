# A volume: what the target serves in this scenario is kept by three chunk servers.
. /job/scenarios/filesystem.sh
make_file_system() { mkfs.ext4 -q -F "$DEVICE"; }
check_file_system() { e2fsck -f -n "$DEVICE"; }
is_thin() { [ "$(cat "/sys/class/block/${DEVICE##*/}/queue/discard_max_bytes")" -gt 0 ] || why "it cannot be trimmed"; }
# Of 512 bytes.
sectors() { cat "/sys/class/block/${DEVICE##*/}/size"; }
sixteen_gibibytes() { [ "$(sectors)" = $((16 << 21)) ] || why "it has $(sectors) sectors"; }

check connect connect
check size sixteen_gibibytes
check thin is_thin
check raw verified_io "$DEVICE" 64
check disconnect disconnect
life_of_a_file_system ext4
