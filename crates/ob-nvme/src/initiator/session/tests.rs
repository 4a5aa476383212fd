//! A session in a time that stands still unless told, against a target that follows a script.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::time::Duration;

use ob_core::Instant;
use ob_wire_nvme::command::{AdminOpcode, FABRICS_OPCODE, FabricsKind, IoOpcode};
use ob_wire_nvme::fabrics::{
    Capabilities, Connect, ConnectResult, ControllerConfiguration, ControllerStatus, Property,
    PropertyAccess, ShutdownNotification, ShutdownStatus, Version,
};
use ob_wire_nvme::feature::SetFeatures;
use ob_wire_nvme::identify::{
    Cns, CommandSetController, Controller, ControllerDescription, ControllerKind, Identify, NamespaceIds,
    async_event,
};
use ob_wire_nvme::io::AsyncEvent;
use ob_wire_nvme::pdu::{
    DataAlignment, DataTransfer, Digests, Framing, IcResponse, Pdu, Progress, ReceiveRules, Role, receive,
};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{
    CommandId, CompletionEntry, ControllerId, NamespaceId, QueueId, Status, SubmissionEntry, TransferTag,
};
use zerocopy::IntoBytes;

use super::{Action, Answer, EVENTS_MAX, Event, LinkKey, Queue, Request, RequestId, Session};
use crate::initiator::connection::Data;
use crate::initiator::error::{Cause, Error, ProtocolError, Unreachable};
use crate::initiator::options::{Options, RetryPolicy};

const NQN: &str = "nqn.2026-01.example:one";

/// What the target does with a command.
#[derive(Clone, Debug)]
enum Verdict {
    Reply(Status, u64, Vec<u8>),
    Silence,
}

fn done(result: u64) -> Verdict {
    Verdict::Reply(Status::SUCCESS, result, Vec::new())
}

fn refused(status: Status) -> Verdict {
    Verdict::Reply(status, 0, Vec::new())
}

type Script = Box<dyn FnMut(&SubmissionEntry) -> Option<Verdict>>;

struct Stage {
    session: Session,
    now: Instant,
    links: BTreeMap<u64, Vec<u8>>,
    /// Whether connections come about.
    is_away: bool,
    /// When they were tried.
    dials: Vec<Instant>,
    /// Commands in their order.
    log: Vec<SubmissionEntry>,
    /// Looks at a command first.
    script: Script,
    configuration: ControllerConfiguration,
}

fn options() -> Options {
    let mut options = Options::new(([127, 0, 0, 1], 4420).into(), NQN, [1; 16]).unwrap();
    options.keep_alive = Duration::ZERO;
    options
}

impl Stage {
    fn new(options: Options, script: impl FnMut(&SubmissionEntry) -> Option<Verdict> + 'static) -> Self {
        let now = Instant::from_nanoseconds(1_000_000_000);
        let session = Session::new(options, Box::new(|bytes| bytes.fill(3)), now);
        let mut stage = Self {
            session,
            now,
            links: BTreeMap::new(),
            is_away: false,
            dials: Vec::new(),
            log: Vec::new(),
            script: Box::new(script),
            configuration: ControllerConfiguration::default(),
        };
        stage.run();
        stage
    }

    fn usual(options: Options) -> Self {
        let stage = Self::new(options, |_| None);
        assert!(stage.session.is_ready(), "{:?}", stage.session.over());
        stage
    }

    fn advance(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.session.tick(self.now);
        self.run();
    }

    /// Lets time pass until the session has something to do.
    fn advance_to_due(&mut self) {
        let due = self.session.next_due().expect("something is due");
        self.advance(due.since(self.now));
    }

    fn run(&mut self) {
        // A target that answers everything at once could go on for ever.
        for _ in 0..1000 {
            let mut did = false;
            while let Some(action) = self.session.next_action() {
                did = true;
                match action {
                    Action::Open(key) if self.is_away => {
                        self.dials.push(self.now);
                        self.session.broken(self.now, key, Unreachable::TimedOut);
                    }
                    Action::Open(key) => {
                        self.dials.push(self.now);
                        self.links.insert(key.0, Vec::new());
                        self.session.dialed(self.now, key);
                    }
                    Action::Close { key, .. } => {
                        self.links.remove(&key.0);
                    }
                }
            }
            for key in self.links.keys().copied().collect::<Vec<_>>() {
                did |= self.serve(LinkKey(key));
            }
            if !did {
                return;
            }
        }
    }

    fn cut(&mut self) {
        let key = LinkKey(*self.links.keys().next().unwrap());
        self.session.ended(self.now, key);
        self.run();
    }

    fn serve(&mut self, key: LinkKey) -> bool {
        let mut slices = [IoSlice::new(&[]); 8];
        let count = self.session.transmit(key, &mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        self.session.sent(key, bytes.len());
        let inbox = self.links.get_mut(&key.0).unwrap();
        inbox.extend_from_slice(&bytes);
        let rules = ReceiveRules {
            role: Role::Target,
            digests: Digests::NONE,
            alignment: DataAlignment::DWORD,
            capsule_data_max: 8192,
            data_max: 1 << 20,
        };
        let Ok(Progress::Header(layout, pdu)) = receive(inbox, &rules) else { return !bytes.is_empty() };
        if inbox.len() < layout.total_len {
            return !bytes.is_empty();
        }
        inbox.drain(..layout.total_len);
        let answer = match pdu {
            Pdu::IcRequest(request) => {
                let digests = request.digests;
                IcResponse { alignment: DataAlignment::DWORD, digests, data_max: 4096 }.encode().to_vec()
            }
            Pdu::Command(entry) => self.answer(&entry),
            other => panic!("unexpected {other:?}"),
        };
        self.say(key, &answer);
        true
    }

    fn say(&mut self, key: LinkKey, mut bytes: &[u8]) {
        while let (false, Some([direct, scratch])) = (bytes.is_empty(), self.session.receive_into(key)) {
            let first = bytes.len().min(direct.len());
            direct[..first].copy_from_slice(&bytes[..first]);
            let second = (bytes.len() - first).min(scratch.len());
            scratch[..second].copy_from_slice(&bytes[first..first + second]);
            bytes = &bytes[first + second..];
            self.session.received(self.now, key, first + second);
        }
    }

    fn answer(&mut self, entry: &SubmissionEntry) -> Vec<u8> {
        self.log.push(*entry);
        let verdict = (self.script)(entry).unwrap_or_else(|| self.usual_answer(entry));
        let Verdict::Reply(status, result, data) = verdict else { return Vec::new() };
        let framing = Framing { role: Role::Target, digests: Digests::NONE, alignment: DataAlignment::DWORD };
        let command = entry.command();
        let mut bytes = Vec::new();
        if !data.is_empty() {
            let (len, tag) = (data.len() as u32, TransferTag(0));
            let transfer = DataTransfer { command, tag, offset: 0, len, is_last: true, is_success: false };
            bytes.extend_from_slice(&framing.data(&transfer));
            bytes.extend_from_slice(&data);
        }
        let response = CompletionEntry::new(command, QueueId(0), 0, status, result);
        bytes.extend_from_slice(&framing.response(&response));
        bytes
    }

    fn usual_answer(&mut self, entry: &SubmissionEntry) -> Verdict {
        if entry.opcode == FABRICS_OPCODE {
            return done(self.fabrics(entry));
        }
        if entry.opcode == AdminOpcode::Identify.code() && is_admin(entry) {
            let data = match Identify::parse(entry).cns() {
                Ok(Cns::Controller) => controller(|_| {}),
                Ok(Cns::CommandSetController) => CommandSetController::default().as_bytes().to_vec(),
                _ => vec![0; 4096],
            };
            return Verdict::Reply(Status::SUCCESS, 0, data);
        }
        match entry.opcode {
            opcode if opcode == AdminOpcode::SetFeatures.code() => {
                done(u64::from(SetFeatures::parse(entry).dword11))
            }
            opcode if opcode == AdminOpcode::AsyncEventRequest.code() => Verdict::Silence,
            opcode if opcode == IoOpcode::Read.code() => {
                Verdict::Reply(Status::SUCCESS, 0, vec![7; entry.sgl.length.get() as usize])
            }
            _ => done(0),
        }
    }

    fn fabrics(&mut self, entry: &SubmissionEntry) -> u64 {
        if entry.fabrics_kind() == FabricsKind::Connect.code() {
            return 1;
        }
        let access = PropertyAccess::parse(entry).unwrap();
        match (access.property, access.value) {
            (Property::Configuration, Some(value)) => {
                self.configuration = ControllerConfiguration(value as u32);
                0
            }
            (Property::Capabilities, None) => capabilities(),
            (Property::Status, None) => {
                let is_down = self.configuration.shutdown() != ShutdownNotification::None;
                let shutdown = if is_down { ShutdownStatus::Complete } else { ShutdownStatus::Running };
                status(self.configuration.is_enabled(), false, shutdown)
            }
            other => panic!("{other:?}"),
        }
    }

    fn flush(&mut self, id: u64, is_idempotent: bool) {
        self.submit(id, Queue::Io, IoOpcode::Flush.code(), is_idempotent);
    }

    fn submit(&mut self, id: u64, queue: Queue, opcode: u8, is_idempotent: bool) {
        let entry = SubmissionEntry::new(opcode, CommandId(0), NamespaceId(id as u32));
        let request =
            Request { queue, entry, data: Data::None, is_idempotent, may_be_short: false, expects: None };
        self.session.submit(self.now, RequestId(id), request);
        self.run();
    }

    fn outcomes(&mut self) -> Vec<(u64, Result<Answer, Error>)> {
        std::iter::from_fn(|| self.session.next_outcome()).map(|(id, outcome)| (id.0, outcome)).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.next_event()).collect()
    }
}

/// Identify is 06h, which is no opcode that the tests use on I/O queues.
fn is_admin(entry: &SubmissionEntry) -> bool {
    entry.opcode == AdminOpcode::Identify.code()
}

fn capabilities() -> u64 {
    Capabilities {
        queue_entries_max: 128,
        contiguous_queues: true,
        timeout_500ms: 1,
        subsystem_reset: false,
        command_sets: Capabilities::COMMAND_SET_NVM,
        page_shift_min: 0,
        page_shift_max: 0,
        ready_modes: 0,
    }
    .bits()
}

fn status(is_ready: bool, is_fatal: bool, shutdown: ShutdownStatus) -> u64 {
    u64::from(ControllerStatus { is_ready, is_fatal, shutdown, subsystem_was_reset: false }.bits())
}

fn controller(change: impl FnOnce(&mut Controller)) -> Vec<u8> {
    let mut controller = Controller::new(&ControllerDescription {
        kind: ControllerKind::Io,
        controller: ControllerId(1),
        version: Version::V1_4,
        subsystem: &Nqn::new(NQN).unwrap(),
        serial: "SN1",
        model: "Model",
        firmware: "1",
        multipath: 0,
        transfer_max: 5,
        async_events: async_event::NAMESPACES,
        async_event_limit: 3,
        keep_alive_100ms: 10,
        commands_max: 0,
        namespaces_max: 16,
        commands: 0,
        has_compare_and_write: false,
        write_cache: 0,
        capsule_data_max: 8192,
        error_log_entries: 0,
        log_attributes: 0,
        ana_groups: 0,
    });
    change(&mut controller);
    controller.as_bytes().to_vec()
}

fn is_connect(entry: &SubmissionEntry) -> bool {
    entry.opcode == FABRICS_OPCODE && entry.fabrics_kind() == FabricsKind::Connect.code()
}

fn is_property(entry: &SubmissionEntry, property: Property) -> bool {
    entry.opcode == FABRICS_OPCODE
        && !is_connect(entry)
        && PropertyAccess::parse(entry).is_ok_and(|access| access.property == property)
}

fn is_cns(entry: &SubmissionEntry, cns: Cns) -> bool {
    is_admin(entry) && Identify::parse(entry).structure == cns.code()
}

/// How the first attempt ends when the script has its way.
fn first_error(script: impl FnMut(&SubmissionEntry) -> Option<Verdict> + 'static) -> Error {
    let mut stage = Stage::new(options(), script);
    if stage.session.over().is_none() {
        stage.advance(options().connect_timeout);
    }
    assert!(stage.links.is_empty(), "connections are left");
    stage.session.over().expect("still alive").clone()
}

#[test]
fn an_association_is_made_step_by_step_with_what_both_sides_allow() {
    let stage = Stage::usual(Options { queues: 3, depth: 500, ..options() });
    let facts = stage.session.facts().unwrap();
    assert_eq!((facts.queues, facts.depth, facts.transfer_max), (3, 127, 128 << 10));
    assert_eq!((facts.serial.as_str(), facts.capsule_data_max), ("SN1", 8192));
    let connects: Vec<_> = stage
        .log
        .iter()
        .filter(|entry| is_connect(entry))
        .map(|entry| Connect::parse(entry).unwrap())
        .collect();
    assert_eq!(connects.iter().map(|connect| connect.queue.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(!connects[0].no_flow_control && connects[1].no_flow_control);
    assert_eq!(connects[1].queue_entries, 128);
}

#[test]
fn a_controller_that_cannot_be_used_is_refused_with_the_reason() {
    type Plain = fn(&SubmissionEntry) -> Option<Verdict>;
    let identity = |change: fn(&mut Controller)| {
        move |entry: &SubmissionEntry| {
            is_cns(entry, Cns::Controller).then(|| Verdict::Reply(Status::SUCCESS, 0, controller(change)))
        }
    };
    let protocol = |error: ProtocolError| Error::NotConnected(Cause::Protocol(error));
    assert_eq!(first_error(identity(|it| it.controller_id = 2.into())), protocol(ProtocolError::Controller));
    assert!(matches!(first_error(identity(|it| it.command_capsule = 3.into())), Error::Unsuitable(_)));
    assert!(matches!(first_error(identity(|it| it.response_capsule = 0.into())), Error::Unsuitable(_)));
    assert!(matches!(first_error(identity(|it| it.capsule_data_offset = 1.into())), Error::Unsuitable(_)));
    let must = |must_authenticate, must_secure_channel| {
        let controller = ControllerId(1);
        let result = ConnectResult { controller, must_authenticate, must_secure_channel };
        move |entry: &SubmissionEntry| is_connect(entry).then(|| done(u64::from(result.bits())))
    };
    assert_eq!(first_error(must(true, false)), Error::AuthenticationRequired);
    assert!(matches!(first_error(must(true, true)), Error::Unsuitable(_)));
    let scripts: [(Plain, Error); 4] = [
        // The second queue is said to belong to another controller.
        (
            |entry| {
                let is_second = is_connect(entry) && Connect::parse(entry).unwrap().queue.0 == 1;
                is_second.then(|| done(2))
            },
            protocol(ProtocolError::Controller),
        ),
        (
            |entry| {
                is_property(entry, Property::Status)
                    .then(|| done(status(false, true, ShutdownStatus::Running)))
            },
            Error::Unsuitable("it reports a fatal state"),
        ),
        (
            |entry| is_property(entry, Property::Status).then(|| done(0)),
            Error::Unreachable(Unreachable::TimedOut),
        ),
        (
            |entry| (entry.opcode == AdminOpcode::SetFeatures.code()).then(|| done(0xFFFF_FFFF)),
            Error::Unsuitable("it has no I/O queues"),
        ),
    ];
    for (script, expected) in scripts {
        assert_eq!(first_error(script), expected);
    }
}

#[test]
fn every_step_that_fails_or_is_not_answered_ends_the_first_attempt() {
    let steps = Stage::usual(options()).log.len();
    let mut optional = 0;
    for wrong in 0..steps {
        let mut count = 0;
        let mut nth = move || {
            count += 1;
            count - 1 == wrong
        };
        let mut stage = Stage::new(options(), move |_| nth().then(|| refused(Status::INVALID_FIELD)));
        if stage.session.over().is_none() {
            optional += 1;
            stage.advance(Duration::from_secs(3600));
        }
        let mut count = 0;
        let mut nth = move || {
            count += 1;
            count - 1 == wrong
        };
        let mut stage = Stage::new(options(), move |_| nth().then_some(Verdict::Silence));
        stage.advance(options().connect_timeout);
        assert!(stage.session.is_ready() == (wrong + 1 == steps), "{wrong}");
        if wrong + 1 < steps {
            assert_eq!(stage.session.over(), Some(&Error::Unreachable(Unreachable::TimedOut)), "{wrong}");
        }
    }
    assert_eq!(optional, 3, "limits, the events' configuration, and the request for events");
}

#[test]
fn keep_alives_go_out_and_one_without_an_answer_ends_the_association() {
    let is_silent = std::rc::Rc::new(std::cell::Cell::new(false));
    let silent = std::rc::Rc::clone(&is_silent);
    let keep_alive = AdminOpcode::KeepAlive.code();
    let options = Options { keep_alive: Duration::from_secs(10), ..options() };
    let mut stage = Stage::new(options, move |entry| {
        (entry.opcode == keep_alive && silent.get()).then_some(Verdict::Silence)
    });
    let sent = |stage: &Stage| stage.log.iter().filter(|entry| entry.opcode == keep_alive).count();
    for round in 0..10 {
        assert_eq!(sent(&stage), round);
        stage.advance(Duration::from_secs(5));
    }
    is_silent.set(true);
    stage.events();
    stage.advance(Duration::from_secs(5));
    assert!(stage.session.is_ready());
    stage.advance(Duration::from_secs(5));
    assert!(!stage.session.is_ready());
    assert_eq!(stage.events(), [Event::Disconnected(Cause::CommandTimeout)]);
    is_silent.set(false);
    stage.advance_to_due();
    assert_eq!(stage.events(), [Event::Connected]);
}

#[test]
fn attempts_wait_twice_as_long_each_time_until_it_is_given_up() {
    let mut options = options();
    options.reconnect.delay_first = Duration::from_secs(1);
    options.reconnect.delay_max = Duration::from_secs(5);
    options.reconnect.give_up_after = Duration::from_secs(17);
    let mut stage = Stage::usual(options);
    stage.is_away = true;
    stage.dials.clear();
    let lost_at = stage.now;
    stage.cut();
    stage.flush(1, true);
    while stage.session.over().is_none() {
        stage.advance_to_due();
    }
    let seconds: Vec<_> = stage.dials.iter().map(|at| at.since(lost_at).as_secs()).collect();
    assert_eq!(seconds, [1, 3, 7, 12, 17]);
    let gave_up = Error::GaveUp(Cause::Broken(Unreachable::TimedOut));
    assert_eq!(stage.outcomes(), [(1, Err(gave_up.clone()))]);
    stage.flush(2, true);
    assert_eq!(stage.outcomes(), [(2, Err(gave_up))]);
    assert_eq!(stage.session.next_due(), None);
}

#[test]
fn a_target_that_refuses_for_good_is_not_asked_again() {
    let is_shut = std::rc::Rc::new(std::cell::Cell::new(None));
    let shut = std::rc::Rc::clone(&is_shut);
    let mut stage = Stage::new(options(), move |entry| shut.get().filter(|_| is_connect(entry)).map(refused));
    is_shut.set(Some(Status::CONNECT_CONTROLLER_BUSY));
    stage.cut();
    stage.advance_to_due();
    assert_eq!(stage.session.over(), None, "busy is for the moment");
    is_shut.set(Some(Status::CONNECT_INVALID_HOST.with_do_not_retry()));
    stage.advance_to_due();
    assert!(matches!(stage.session.over(), Some(Error::Refused { .. })));
}

#[test]
fn a_target_that_forgets_its_controller_between_two_connects_is_asked_again() {
    let forgets = std::rc::Rc::new(std::cell::Cell::new(false));
    let script = std::rc::Rc::clone(&forgets);
    let mut stage = Stage::new(options(), move |entry| {
        let is_io = is_connect(entry) && entry.dword10.get() >> 16 != 0;
        (is_io && script.replace(false))
            .then(|| refused(Status::CONNECT_INVALID_PARAMETERS.with_do_not_retry()))
    });
    assert!(stage.session.is_ready());
    forgets.set(true);
    stage.cut();
    stage.advance_to_due();
    assert!(!forgets.get() && !stage.session.is_ready());
    assert_eq!(stage.session.over(), None, "the next association has another controller");
    stage.advance_to_due();
    assert!(stage.session.is_ready());
}

#[test]
fn what_is_lost_is_repeated_in_its_order_or_fails_by_policy() {
    let is_silent = std::rc::Rc::new(std::cell::Cell::new(true));
    let silent = std::rc::Rc::clone(&is_silent);
    let flush = IoOpcode::Flush.code();
    let options = Options { depth: 3, ..options() };
    let mut stage =
        Stage::new(options, move |entry| (entry.opcode == flush && silent.get()).then_some(Verdict::Silence));
    // Three are sent, of which two may be repeated; two wait.
    for (id, is_idempotent) in [(1, true), (2, false), (3, true), (4, false), (5, true)] {
        stage.flush(id, is_idempotent);
    }
    stage.cut();
    assert_eq!(stage.outcomes(), [(2, Err(Error::Lost(Cause::Ended)))]);
    is_silent.set(false);
    stage.log.clear();
    stage.advance_to_due();
    let sent: Vec<u32> =
        stage.log.iter().filter(|entry| entry.opcode == flush).map(|entry| entry.namespace.get()).collect();
    assert_eq!(sent, [1, 3, 4, 5]);
    assert!(stage.outcomes().iter().all(|(_, outcome)| outcome.is_ok()));
}

#[test]
fn statuses_that_pass_are_waited_for_and_others_are_told_at_once() {
    for (answer, attempts) in [
        (Status::ANA_TRANSITION, 3),
        (Status::NAMESPACE_NOT_READY, 3),
        (Status::NAMESPACE_NOT_READY.with_do_not_retry(), 1),
        (Status::ANA_PERSISTENT_LOSS, 1),
        (Status::LBA_OUT_OF_RANGE, 1),
    ] {
        for is_idempotent in [true, false] {
            let flush = IoOpcode::Flush.code();
            let retry = RetryPolicy { attempts_max: 3, ..RetryPolicy::default() };
            let mut stage = Stage::new(Options { retry, ..options() }, move |entry| {
                (entry.opcode == flush).then(|| refused(answer))
            });
            stage.flush(1, is_idempotent);
            let expected = if is_idempotent { attempts } else { 1 };
            for _ in 1..expected {
                assert_eq!(stage.outcomes(), []);
                stage.advance(RetryPolicy::default().delay);
            }
            assert_eq!(stage.outcomes(), [(1, Err(Error::Command { status: answer, result: 0 }))]);
            assert_eq!(stage.log.iter().filter(|entry| entry.opcode == flush).count(), expected);
        }
    }
}

/// A session that knows a namespace and lost its association; from then on its ids are answered with `later`, by how often
/// they were asked for. And a request for that namespace.
fn reconnected(later: impl Fn(usize) -> Status + 'static) -> Stage {
    let ids = NamespaceIds { uuid: Some([5; 16]), ..NamespaceIds::default() };
    let mut asked = 0;
    let mut stage = Stage::new(options(), move |entry| {
        is_cns(entry, Cns::NamespaceIds).then(|| {
            asked += 1;
            let status = if asked == 1 { Status::SUCCESS } else { later(asked - 1) };
            let data = if status.is_success() { ids.encode().to_vec() } else { Vec::new() };
            Verdict::Reply(status, 0, data)
        })
    });
    let mut request = Request {
        queue: Queue::Admin,
        entry: Identify::new(Cns::NamespaceIds, NamespaceId(1)).encode(CommandId(0)),
        data: Data::ToHost(4096),
        is_idempotent: true,
        may_be_short: false,
        expects: None,
    };
    stage.session.submit(stage.now, RequestId(1), request.clone());
    stage.run();
    assert!(stage.outcomes()[0].1.is_ok());
    stage.cut();
    stage.advance_to_due();
    assert!(stage.session.is_ready());
    request.entry = SubmissionEntry::new(IoOpcode::Flush.code(), CommandId(0), NamespaceId(1));
    (request.queue, request.data, request.expects) = (Queue::Io, Data::None, Some(ids));
    stage.session.submit(stage.now, RequestId(2), request);
    stage.run();
    stage
}

#[test]
fn a_namespace_that_cannot_be_told_for_the_moment_is_asked_for_again() {
    let not_yet = |asked: usize| if asked <= 3 { Status::NAMESPACE_NOT_READY } else { Status::SUCCESS };
    let mut stage = reconnected(not_yet);
    for _ in 0..3 {
        assert_eq!(stage.outcomes(), [], "nobody knows yet whether it is the same");
        stage.advance_to_due();
    }
    assert!(matches!(stage.outcomes()[..], [(2, Ok(_))]), "it is");
    // One that is gone is another, and one that can never be told is not waited for without end.
    let mut stage = reconnected(|_| Status::INVALID_NAMESPACE);
    assert_eq!(stage.outcomes(), [(2, Err(Error::NamespaceChanged(NamespaceId(1))))]);
    let mut stage = reconnected(|_| Status::NAMESPACE_NOT_READY);
    let outcomes = (0..1000).find_map(|_| {
        stage.advance_to_due();
        Some(stage.outcomes()).filter(|outcomes| !outcomes.is_empty())
    });
    assert_eq!(outcomes, Some(vec![(2, Err(Error::NamespaceChanged(NamespaceId(1))))]));
}

#[test]
fn a_target_that_never_stops_telling_events_fills_nothing() {
    let event = AsyncEvent::NAMESPACES_CHANGED;
    let mut stage = Stage::new(options(), move |entry| {
        (entry.opcode == AdminOpcode::AsyncEventRequest.code()).then(|| done(event.bits()))
    });
    let asked =
        stage.log.iter().filter(|entry| entry.opcode == AdminOpcode::AsyncEventRequest.code()).count();
    assert!(asked > 2 * EVENTS_MAX, "{asked}");
    let events = stage.events();
    assert_eq!((events.len(), events.last()), (EVENTS_MAX, Some(&Event::Missed)));
    // And the user's commands still get through.
    stage.flush(1, true);
    assert!(stage.outcomes()[0].1.is_ok());
}

#[test]
fn a_shutdown_waits_for_what_is_under_way_and_tells_the_controller() {
    for is_answered in [true, false] {
        let is_silent = std::rc::Rc::new(std::cell::Cell::new(true));
        let silent = std::rc::Rc::clone(&is_silent);
        let flush = IoOpcode::Flush.code();
        let options = Options { depth: 1, ..options() };
        let mut stage = Stage::new(options.clone(), move |entry| {
            (entry.opcode == flush && silent.get()).then_some(Verdict::Silence)
        });
        stage.flush(1, true);
        stage.flush(2, true);
        stage.session.shutdown(stage.now);
        stage.run();
        assert_eq!(stage.outcomes(), [(2, Err(Error::Closed))], "what was not sent");
        assert_eq!(stage.session.over(), None);
        if is_answered {
            let command = stage.log.iter().rfind(|entry| entry.opcode == flush).unwrap().command();
            let framing =
                Framing { role: Role::Target, digests: Digests::NONE, alignment: DataAlignment::DWORD };
            let response = CompletionEntry::new(command, QueueId(1), 0, Status::SUCCESS, 0);
            let io = LinkKey(*stage.links.keys().last().unwrap());
            stage.say(io, &framing.response(&response));
            stage.run();
            assert!(stage.outcomes()[0].1.is_ok());
            assert_eq!(stage.configuration.shutdown(), ShutdownNotification::Normal);
        } else {
            stage.advance(options.disconnect_timeout);
            assert_eq!(stage.outcomes(), [(1, Err(Error::Closed))]);
        }
        assert_eq!(stage.session.over(), Some(&Error::Closed));
        assert!(stage.links.is_empty());
    }
}

#[test]
fn a_controller_that_takes_its_time_to_shut_down_is_asked_now_and_then() {
    let is_question = |entry: &&SubmissionEntry| {
        entry.opcode == FABRICS_OPCODE && entry.fabrics_kind() == FabricsKind::PropertyGet.code()
    };
    let is_slow = std::rc::Rc::new(std::cell::Cell::new(false));
    let slow = std::rc::Rc::clone(&is_slow);
    let mut stage = Stage::new(options(), move |entry| {
        let occurring = status(true, false, ShutdownStatus::Occurring);
        (slow.get() && is_question(&entry)).then(|| done(occurring))
    });
    is_slow.set(true);
    stage.log.clear();
    stage.session.shutdown(stage.now);
    stage.run();
    assert_eq!(stage.log.iter().filter(is_question).count(), 1, "asked once, and then not at once again");
    let asked_at = stage.now;
    for questions in 2..10 {
        stage.advance_to_due();
        assert_eq!(stage.log.iter().filter(is_question).count(), questions);
        assert!(stage.now.since(asked_at) >= Duration::from_millis(5) * (questions as u32 - 1));
    }
    assert_eq!(stage.session.over(), None);
    stage.advance(options().disconnect_timeout);
    assert_eq!(stage.session.over(), Some(&Error::Closed), "the deadline stands");
    assert_eq!(stage.session.next_due(), None);
}

#[test]
fn without_io_queues_io_is_refused_and_admin_commands_work() {
    let mut stage = Stage::usual(options().for_discovery());
    stage.flush(1, true);
    assert!(matches!(&stage.outcomes()[..], [(1, Err(Error::Unsuitable(_)))]));
    stage.submit(2, Queue::Admin, AdminOpcode::KeepAlive.code(), true);
    assert!(stage.outcomes()[0].1.is_ok());
}
