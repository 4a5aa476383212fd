# Storage functions over files of a mounted namespace, by way of this kernel.
agree() { /job/lib/ld-linux-x86-64.so.2 --library-path /job/lib /job/agree "$@" >/tmp/agree 2>&1; }
# agrees KIND SECONDS SEED OPTION...
agrees() {
    what=$1
    shift
    agree "$what" /mnt "$@"
    status=$?
    cat /tmp/agree
    [ $status = 0 ] || why "$(tail -n 1 /tmp/agree)"
}
# disagrees WITH SAYING KIND SECONDS SEED OPTION...: with this bug planted it must be seen that answers are wrong.
disagrees() {
    bug=$1
    saying=$2
    what=$3
    shift 3
    export OB_PLANT=$bug
    agree "$what" /mnt "$@"
    status=$?
    unset OB_PLANT
    cat /tmp/agree
    [ $status != 0 ] || why "nobody noticed $bug" || return 1
    grep -q "$saying" /tmp/agree || why "$bug: $(tail -n 1 /tmp/agree)"
}

# RocksDB itself, for who compares.
PEER="/job/lib/ld-linux-x86-64.so.2 --library-path /job/lib /job/rocksdb-peer"

# The command that people type, over this kernel's connection. What it says is in /tmp/said, the scratch of a run in /tmp/scratch.
outboard() { /job/lib/ld-linux-x86-64.so.2 --library-path /job/lib /job/outboard "$@" >/tmp/said 2>&1; }
pushdown() { verb=$1; shift; outboard pushdown "$verb" "$@" --device "$DEVICE"; }
count() { pushdown run count_lines --length 2KiB --reads 200 --u64 250000 --answer 40 --out /tmp/scratch "$@"; }
says() { grep -q "$1" /tmp/said || why "it should say \`$1\`: $(head -n 1 /tmp/said)"; }
# counts FILE OPTION...: the program counts as many lines as there are in this file.
counts() {
    file=$1
    shift
    count "$@" || why "$(head -n 1 /tmp/said)" || return 1
    counted=$(od -A n -t u8 -j 8 -N 8 /tmp/scratch | tr -d ' ')
    lines=$(wc -l <"$file")
    [ "$counted" = "$lines" ] || why "$counted lines, and wc says $lines"
}
loads_and_runs() {
    seq -w 1 30000 >/mnt/words
    seq 1 500 >/mnt/few
    pushdown load /job/count_lines.o && says count_lines/count_lines || return 1
    counts /mnt/words --mounted /mnt/words || return 1
    counts /mnt/few --mounted /mnt/words --mounted /mnt/few --first 1 || return 1
    echo one more >>/mnt/words
    counts /mnt/words --mounted /mnt/words
}
# Whoever writes wins, and then nothing is answered: there is no other way here.
refuses_what_is_written() {
    exec 9>>/mnt/words
    count --mounted /mnt/words
    status=$?
    exec 9>&-
    [ $status != 0 ] || why "a file that is open for writing was asked for" || return 1
    says 'somebody has the file open for writing' && says 'whoever writes wins' || return 1
    counts /mnt/words --mounted /mnt/words
}
refuses_what_lies_elsewhere() {
    seq 1 9 >/tmp/words
    not count --mounted /tmp/words || why "a file of another file system was asked for" || return 1
    says 'files on tmpfs cannot be read past it' || return 1
    not outboard pushdown ls --device /dev/nvme9n9 && says 'this machine has no device /dev/nvme9n9' || return 1
    not outboard pushdown ls --device /dev/vda && says '/dev/vda is no NVMe namespace'
}
refuses_who_is_not_root() {
    grep -q ^nobody: /etc/passwd || echo 'nobody:x:65534:65534:nobody:/:/bin/sh' >>/etc/passwd
    list="/job/lib/ld-linux-x86-64.so.2 --library-path /job/lib /job/outboard pushdown ls --device $DEVICE"
    not su -s /bin/sh -c "$list" nobody >/tmp/said 2>&1 || why "nobody has sent commands" || return 1
    says "cannot use /dev/ng" && says "root's to send (CAP_SYS_ADMIN)"
}
takes_out() {
    # Others may have left theirs.
    pushdown rm count_lines || why "$(head -n 1 /tmp/said)" || return 1
    not grep -q count_lines /tmp/said || why "it is still listed" || return 1
    not count --mounted /mnt/words && says 'does not keep the program' && rm /mnt/words /mnt/few
}
# A tree and a database of RocksDB's, looked up by the card while nobody writes them, and by ordinary reads else.
asks_a_tree() {
    outboard pushdown btree make /mnt/tree --sample 50000 --values numbers --force || why "$(head -n 1 /tmp/said)" || return 1
    pushdown btree get 1 49999 --mounted /mnt/tree --values numbers --verbose || why "$(head -n 1 /tmp/said)" || return 1
    says '^49999 49999 99$' && says '^by the card: 2 answers, 10 reads there$' || return 1
    pushdown btree aggregate 1001 2000 --mounted /mnt/tree --verbose && says '^1000 numbers, sum 1500500, ' && says '^by the card: ' || return 1
    pushdown btree range 7 9 --mounted /mnt/tree --ordinary --verbose && says '^by ordinary reads: 1 answer, ' || return 1
    exec 9>>/mnt/tree
    pushdown btree get 4711 --mounted /mnt/tree --values numbers --verbose
    exec 9>&-
    says '^4711 4711 11$' && says '^by ordinary reads: 1 answer, 5 reads; the card cannot read /mnt/tree: somebody has' && rm /mnt/tree
}
reads_a_database() {
    printf '%s\n' 'write 700' flush_all 'write 300' flush_all 'ask 200' close | $PEER /mnt/shell 11 lengths=7 filter=bloom >/tmp/answers || return 1
    outboard pushdown rocksdb ls /mnt/shell && says '^  default ' || return 1
    asked=0
    by_card=0
    # get FAMILY SNAPSHOT KEY value VALUE, in hexadecimal; an empty value is `-`.
    while read -r get family snapshot key found value; do
        [ "$get $family $snapshot $found" = 'get 64656661756C74 now value' ] && [ "$value" != - ] || continue
        pushdown rocksdb get /mnt/shell "$key" --hex --verbose || why "$(head -n 1 /tmp/said)" || return 1
        says "^$(echo "$value" | tr A-F a-f)\$" || return 1
        asked=$((asked + 1))
        ! grep -q '^by the card: 1 key' /tmp/said || by_card=$((by_card + 1))
    done </tmp/answers
    [ $asked -gt 3 ] && [ $by_card -gt 0 ] || why "of $asked keys the card has answered $by_card" || return 1
    rm -r /mnt/shell
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
    if [ -f /job/outboard ]; then
        check $kind-command-loads-and-runs loads_and_runs
        check $kind-command-refuses-what-is-written refuses_what_is_written
        check $kind-command-refuses-what-lies-elsewhere refuses_what_lies_elsewhere
        check $kind-command-refuses-who-is-not-root refuses_who_is_not_root
        check $kind-command-takes-out takes_out
        check $kind-command-asks-a-tree asks_a_tree
        if [ -f /job/rocksdb-peer ]; then
            check $kind-command-reads-a-database reads_a_database
        else
            skip $kind-command-reads-a-database "there is no g++ or no RocksDB where this was started (Debian: g++, librocksdb-dev)"
        fi
    else
        skip $kind-command "outboard is not built: it is not the target"
    fi
    check $kind-agrees-by-io-uring agrees stamps 10 1
    check $kind-agrees-by-ioctl agrees stamps 6 2 ioctl
    check $kind-lease-skipped disagrees lease-skipped 'strange\|two versions\|was written before' stamps 60 3
    # By ioctl, where nobody keeps maps: a keeper withdraws a map before anybody writes, and then hardly an answer comes too late.
    check $kind-after-check-skipped disagrees after-check-skipped 'strange\|two versions\|was written before' stamps 300 4 ioctl
    check $kind-tree agrees tree 10 5
    check $kind-tree-by-ioctl agrees tree 6 6 ioctl
    check $kind-tree-lease-skipped disagrees lease-skipped 'of none of the versions' tree 60 7
    if [ -f /job/rocksdb-peer ]; then
        check $kind-database agrees database 14 9 $PEER
        check $kind-database-tombstones-forgotten disagrees pushed-tombstones-forgotten 'by ordinary reads' database 60 10 $PEER
    else
        skip $kind-database "there is no g++ or no RocksDB where this was started (Debian: g++, librocksdb-dev)"
    fi
    check $kind-unmount umount /mnt
    check $kind-fsck check_$kind
done
check disconnect disconnect
check kernel-is-quiet kernel_is_quiet
