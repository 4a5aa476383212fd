unknown_is_refused() { ! dial -n "$NQN.unknown" || why "a subsystem that does not exist was connected"; }

for form in plain: header-digest:-g data-digest:-G both-digests:"-g -G" small-queue:"-Q 16"; do
    name=${form%%:*}
    # Words of the options are meant to be split.
    check "connect-$name" connect ${form#*:}
    check "io-$name" verified_io "$DEVICE" 4 --bsrange=4k-128k
    check "disconnect-$name" disconnect
done
check kernel-log-so-far kernel_is_quiet
LOST_TARGET=1
check unknown-subsystem unknown_is_refused
