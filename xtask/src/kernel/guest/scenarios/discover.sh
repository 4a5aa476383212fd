discover() { nvme discover -t tcp -a "$ADDRESS" -s "$PORT" "$@" >/tmp/a; status=$?; cat /tmp/a; return $status; }
lists_the_subsystem() { grep -q "^subnqn: *$NQN\$" /tmp/a || why "the discovery log does not list $NQN"; }
names_itself() {
    grep -A8 '^subtype: *current discovery subsystem' /tmp/a >/tmp/b || { why "the discovery log does not name its own service"; return; }
    grep -q '^subnqn: *nqn.2014-08.org.nvmexpress.discovery' /tmp/b || { why "its own service has another name"; return; }
    grep -q '^eflags: *explicit discovery connections' /tmp/b || why "it does not say that it may be stayed connected to"
}
counts_its_records() {
    records=$(sed -n 's/.*Number of Records \([0-9]*\),.*/\1/p' /tmp/a)
    [ "$(grep -c '^subnqn:' /tmp/a)" = "$records" ] || why "$records records are announced, and others are there"
}
is_stable() {
    before=$(sed -n 's/.*Generation counter //p' /tmp/a)
    discover && [ "$(sed -n 's/.*Generation counter //p' /tmp/a)" = "$before" ] || why "the generation changed without a reason"
}
persistent() {
    discover --persistent --keep-alive-tmo=5 || return 1
    has_controller nqn.2014-08.org.nvmexpress.discovery || why "the persistent discovery controller is gone"
}
outlives_keep_alive() {
    CONTROLLER=$(controllers_of nqn.2014-08.org.nvmexpress.discovery | head -n 1)
    # Nothing to be observed but that nothing happens: three timeouts, for two may pass before a silent host is given up.
    sleep 15
    is_live || why "the discovery controller is $(controller_state)"
}
end_it() { nvme disconnect -d "$CONTROLLER" && wait_for 10 not has_controller nqn.2014-08.org.nvmexpress.discovery; }

check discover discover
check subsystem-listed lists_the_subsystem
check names-itself names_itself
check record-count counts_its_records
check generation is_stable
check with-digests discover -g -G
check subsystem-listed-again lists_the_subsystem
check persistent persistent
check keep-alive outlives_keep_alive
check disconnect end_it
