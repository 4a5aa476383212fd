LOST_TARGET=1
reads() { dd if="$DEVICE" of=/dev/null bs=64k count=16 iflag=direct; }
refused() { ! dial -n "$AUTH_NQN" "$@" || why "the target let a host in with: $*"; }
# Other secrets, rightly formed.
WRONG_HOST_KEY=$CONTROLLER_KEY
WRONG_CONTROLLER_KEY=$HOST_KEY

# Some kernels list the option and are built without what it asks for.
if ! grep -q dhchap_secret /dev/nvme-fabrics || ! grep -q ' nvme_auth_negotiate' /proc/kallsyms; then
    skip authentication "the kernel $(uname -r) is built without it (CONFIG_NVME_HOST_AUTH)"
else
    check host-authenticates connect_to "$AUTH_NQN" -S "$HOST_KEY"
    check read-one-way reads
    check disconnect-one-way disconnect
    check both-authenticate connect_to "$AUTH_NQN" -S "$HOST_KEY" -C "$CONTROLLER_KEY"
    check read-both-ways reads
    check disconnect-both-ways disconnect
    check both-with-digests connect_to "$AUTH_NQN" -S "$HOST_KEY" -C "$CONTROLLER_KEY" -g -G -i 2
    check write verified_io "$DEVICE" 4
    check disconnect-with-digests disconnect
    check no-secret-refused refused
    check wrong-secret-refused refused -S "$WRONG_HOST_KEY"
    check wrong-controller-refused refused -S "$HOST_KEY" -C "$WRONG_CONTROLLER_KEY"
fi
