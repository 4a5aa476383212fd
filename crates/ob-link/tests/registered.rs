//! The memory of open groups is registered with the card's reactor, and only theirs.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

mod common;

use common::{Card, ECHO, attach, observe, push, take};

/// Kilobytes that this process has pinned: what its reactors have registered.
fn pinned_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Memory that a reactor of this process has registered, if it may. Kept to the end: what is pinned is counted by process.
fn registered() -> Option<(ob_io::Reactor, ob_memory::Pool)> {
    let reactor = ob_io::Reactor::new(&ob_io::Config::default()).unwrap();
    let pool = ob_memory::Pool::new(1 << 20, 1);
    reactor.handle().register_arena(pool.arena()).is_ok().then_some((reactor, pool))
}

#[test]
fn memory_is_registered_while_its_group_is_open() {
    let Some(_registered) = registered() else {
        ob_plant::not_tested("this kernel does not let the process register memory");
        return;
    };
    let card = Card::start(None);
    let link = attach(card.unix());
    let before = pinned_kb();
    // What a group needs of the card's memory: as much as its rings have.
    let group_kb = 2 * 256;
    let open = || link.open_group(ECHO, 256 << 10, 256 << 10).unwrap();
    let groups = [open(), open()];
    for group in &groups {
        push(group, b"a request", None);
        assert_eq!(take(group).0, b"a request");
    }
    assert_eq!(pinned_kb() - before, 2 * group_kb);
    let [first, second] = groups;
    drop(first);
    observe("the end of one group", || (pinned_kb() - before == group_kb).then_some(()));
    push(&second, b"another", None);
    assert_eq!(take(&second).0, b"another", "the other group goes on");
    drop(link);
    drop(second);
    observe("the end of the host", || (pinned_kb() == before).then_some(()));
}
