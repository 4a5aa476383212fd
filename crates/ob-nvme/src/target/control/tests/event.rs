//! Asynchronous events: told once, then again only after the host has looked.

use super::*;

const NAMESPACES: u32 = 0x0004_0002;
const ANA: u32 = 0x000C_0302;
const DISCOVERY: u32 = 0x0070_F002;

fn told(queue: QueueIdentity, command: u16, result: u32) -> ControlEvent {
    ControlEvent::CompleteAsync { queue, command: CommandId(command), result, status: Status::SUCCESS }
}

/// A controller that wants to know everything.
fn curious(stage: &mut Stage, host: u8) -> QueueIdentity {
    let queue = stage.ready(host).identity;
    assert_eq!(stage.set_feature(queue, 0x0B, 1 << 8 | 1 << 11), Verdict::SUCCESS);
    queue
}

#[test]
fn a_resize_is_told_once_until_the_log_is_read() {
    let mut stage = Stage::new();
    let queue = curious(&mut stage, 1);
    assert_eq!(stage.hold(queue, 10), Verdict::Held);
    assert_eq!(stage.hold(queue, 11), Verdict::Held);
    stage.control.resize_namespace(stage.subsystem, 2, 5000).unwrap();
    assert_eq!(stage.events(), [told(queue, 10, NAMESPACES)]);
    stage.control.remove_namespace(stage.subsystem, 1).unwrap();
    assert!(stage.events().is_empty(), "masked");
    let retained = bytes_of(stage.log(queue, 4, 4096, true));
    assert_eq!([word(&retained, 0), word(&retained, 4), word(&retained, 8)], [1, 2, 0]);
    assert!(stage.events().is_empty(), "still masked");
    assert_eq!(bytes_of(stage.log(queue, 4, 4096, false)), retained);
    assert!(bytes_of(stage.log(queue, 4, 4096, false)).iter().all(|byte| *byte == 0), "cleared");
    assert!(stage.events().is_empty(), "the log told of both changes");
    stage.control.add_namespace(stage.subsystem, &namespace(8)).unwrap();
    assert_eq!(stage.events(), [told(queue, 11, NAMESPACES)]);
    let page = bytes_of(stage.identify(queue, Cns::Namespace, 2));
    assert_eq!(long(&page, 0), 5000);
}

#[test]
fn nothing_is_told_that_was_not_asked_for() {
    let mut stage = Stage::new();
    let queue = stage.ready(1).identity;
    assert_eq!(stage.hold(queue, 10), Verdict::Held);
    stage.control.resize_namespace(stage.subsystem, 2, 5000).unwrap();
    stage.control.set_ana_state(stage.subsystem, PORT, 1, AnaState::Change).unwrap();
    assert!(stage.events().is_empty());
    let log = bytes_of(stage.log(queue, 4, 4096, false));
    assert_eq!(word(&log, 0), 2, "the log tells of it nevertheless");
    assert_eq!(stage.set_feature(queue, 0x0B, 1 << 31), refused(Status::INVALID_FIELD));
    assert_eq!(stage.set_feature(queue, 0x0B, 1 << 9), refused(Status::INVALID_FIELD));
}

#[test]
fn an_event_waits_for_a_request() {
    let mut stage = Stage::new();
    let queue = curious(&mut stage, 1);
    stage.control.resize_namespace(stage.subsystem, 2, 5000).unwrap();
    assert!(stage.events().is_empty());
    assert_eq!(stage.hold(queue, 1), Verdict::Held);
    assert_eq!(stage.events(), [told(queue, 1, NAMESPACES)]);
}

#[test]
fn a_resize_to_the_same_size_is_no_change() {
    let mut stage = Stage::new();
    let queue = curious(&mut stage, 1);
    stage.hold(queue, 1);
    stage.control.resize_namespace(stage.subsystem, 1, 1000).unwrap();
    stage.control.set_ana_state(stage.subsystem, PORT, 1, AnaState::Optimized).unwrap();
    assert!(stage.events().is_empty());
}

#[test]
fn kinds_of_events_do_not_mask_each_other() {
    let mut stage = Stage::new();
    let queue = curious(&mut stage, 1);
    for command in 1..=4 {
        assert_eq!(stage.hold(queue, command), Verdict::Held);
    }
    assert_eq!(stage.hold(queue, 5), refused(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    stage.control.resize_namespace(stage.subsystem, 2, 5000).unwrap();
    stage.control.set_ana_state(stage.subsystem, PORT, 1, AnaState::NonOptimized).unwrap();
    stage.control.set_ana_state(stage.subsystem, PORT, 1, AnaState::Optimized).unwrap();
    assert_eq!(stage.events(), [told(queue, 1, NAMESPACES), told(queue, 2, ANA)]);
    stage.control.set_ana_state(stage.subsystem, SECOND_PORT, 1, AnaState::NonOptimized).unwrap();
    bytes_of(stage.log(queue, 0x0C, 4096, false));
    assert!(stage.events().is_empty(), "another port's state is none of its business");
    stage.control.set_ana_state(stage.subsystem, PORT, 1, AnaState::Inaccessible).unwrap();
    assert_eq!(stage.events(), [told(queue, 3, ANA)]);
}

#[test]
fn persistent_discovery_controllers_hear_of_changes() {
    let mut stage = Stage::new();
    let queue = stage.discovery(1);
    assert_eq!(stage.set_feature(queue, 0x0B, 1 << 31), Verdict::SUCCESS);
    assert_eq!(stage.set_feature(queue, 0x0B, 1 << 8), refused(Status::INVALID_FIELD));
    stage.hold(queue, 1);
    stage.hold(queue, 2);
    stage.control.add_subsystem(SubsystemSpec::open(host_nqn(50), "5")).unwrap();
    stage.control.add_subsystem(SubsystemSpec::open(host_nqn(51), "6")).unwrap();
    assert_eq!(stage.events(), [told(queue, 1, DISCOVERY)]);
    bytes_of(stage.log(queue, 0x70, 1024, true));
    bytes_of(stage.log(queue, 0x70, 4096, false));
    let port = PortSpec { port: PortKey(30), address: address(4430), discovery_only: false };
    stage.control.add_port(port).unwrap();
    assert_eq!(stage.events(), [told(queue, 2, DISCOVERY)]);
}

#[test]
fn every_controller_of_the_subsystem_hears_and_the_key_of_a_removed_namespace_is_gone() {
    let mut stage = Stage::new();
    let first = curious(&mut stage, 1);
    let second = curious(&mut stage, 2);
    stage.hold(first, 1);
    stage.hold(second, 2);
    stage.control.remove_namespace(stage.subsystem, 1).unwrap();
    assert_eq!(stage.events(), [told(first, 1, NAMESPACES), told(second, 2, NAMESPACES)]);
    let gone = stage.control.namespace(first.controller, 1).map(|namespace| namespace.key);
    assert_eq!(gone, Err(Status::INVALID_NAMESPACE.with_do_not_retry()));
}
