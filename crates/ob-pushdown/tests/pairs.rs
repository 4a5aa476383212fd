//! Requests that are two commands.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ob_pushdown::client::{
    Command, CommandAnswer, Detour, PushError, Read, Session, Transport, TransportError,
};
use ob_pushdown::target::FunctionLimits;
use ob_wire_nvme::pushdown::{Description, Function, VERSION};
use ob_wire_nvme::{NamespaceId, Status};
use zerocopy::IntoBytes;

use crate::lab::support::HOST;
use crate::lab::{DONE, Lab, OBEY, body, end, header, script, seen, sum};

const TIME: Status = Status::PUSHDOWN_TIME.with_do_not_retry();
const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();
const LIMIT: Status = Status::PUSHDOWN_LIMIT.with_do_not_retry();

fn lab(limits: FunctionLimits) -> (Lab, crate::lab::support::Client, Vec<u8>) {
    let mut lab = Lab::with(Default::default(), limits);
    let io = lab.host(HOST, 9).io;
    lab.rig.disk.bytes[..512].fill(2);
    let program = lab.load(io, "obey", OBEY).unwrap();
    let file = lab.map(io, (0, 1), 512, &[(0, 0, 512)]).unwrap();
    let body = body(&header(program, (0, 0, 512)), &[(file, 1)], &script(&[[DONE, 0, 0, 0]]));
    (lab, io, body)
}

#[test]
fn either_half_may_come_first() {
    let (mut lab, io, body) = lab(FunctionLimits::default());
    assert!(lab.call(io, Function::Query(7), &body, 0).is_ok());
    let (reads, scratch) = lab.call(io, Function::Answer(7), &[], 4096).unwrap();
    assert_eq!((reads, seen(&scratch)), (1, (512, sum(&[2; 512]))));
    let asked = lab.send(io, 1, Function::Answer(8), &[], 4096);
    assert!(lab.answer(io, asked).is_none(), "it waits");
    assert!(lab.call(io, Function::Query(9), &body, 0).is_ok(), "another's");
    assert!(lab.answer(io, asked).is_none());
    assert!(lab.call(io, Function::Query(8), &body, 0).is_ok());
    assert_eq!(seen(&lab.answer(io, asked).unwrap().unwrap().1), (512, sum(&[2; 512])));
    assert_eq!(lab.call(io, Function::Answer(9), &[], 4).unwrap().1.len(), 4);
    lab.check_rest();
}

#[test]
fn a_token_has_one_query_and_one_answer_at_a_time() {
    let (mut lab, io, body) = lab(FunctionLimits::default());
    assert!(lab.call(io, Function::Query(7), &body, 0).is_ok());
    assert_eq!(end(lab.call(io, Function::Query(7), &body, 0)).0, INVALID);
    assert!(lab.call(io, Function::Answer(7), &[], 4096).is_ok(), "the first is still there");
    let waits = lab.send(io, 1, Function::Answer(7), &[], 4096);
    assert_eq!(end(lab.call(io, Function::Answer(7), &[], 4096)).0, INVALID);
    assert!(lab.call(io, Function::Query(7), &body, 0).is_ok());
    assert!(lab.answer(io, waits).unwrap().is_ok());
    // What is wrong with a query, who asks is told.
    assert!(lab.call(io, Function::Query(1), &body[..30], 0).is_ok());
    assert_eq!(end(lab.call(io, Function::Answer(1), &[], 4096)).0, INVALID);
    assert_eq!(end(lab.call(io, Function::Query(1), &[0; 6000], 0)).0, INVALID, "longer than any request");
    assert_eq!(end(lab.call(io, Function::Answer(1), &[], 4096)).0, LIMIT, "which is asked for in vain");
    lab.check_rest();
}

#[test]
fn halves_are_not_kept_for_ever() {
    let (mut lab, io, body) = lab(FunctionLimits::default());
    assert!(lab.call(io, Function::Query(7), &body, 0).is_ok());
    let asked = lab.send(io, 1, Function::Answer(8), &[], 4096);
    lab.run();
    lab.rig.advance(Duration::from_secs(9));
    assert!(lab.answer(io, asked).is_none());
    for _ in 0..3 {
        lab.rig.advance(Duration::from_secs(1));
        lab.run();
    }
    assert_eq!(end(lab.answer(io, asked).unwrap()), (TIME, 0, 0));
    // The query is gone, too: its token is free, and who asks now waits in vain.
    let late = lab.send(io, 1, Function::Answer(7), &[], 4096);
    assert!(lab.answer(io, late).is_none());
    for _ in 0..12 {
        lab.rig.advance(Duration::from_secs(1));
        lab.run();
    }
    assert_eq!(end(lab.answer(io, late).unwrap()).0, TIME);
    lab.check_rest();
}

#[test]
fn halves_are_limited() {
    let (mut lab, io, body) =
        lab(FunctionLimits { queries_max: 3, plans_max: 2, ..FunctionLimits::default() });
    for token in 0..3 {
        assert!(lab.call(io, Function::Query(token), &body, 0).is_ok());
    }
    assert_eq!(end(lab.call(io, Function::Query(3), &body, 0)).0, LIMIT);
    assert_eq!(end(lab.call(io, Function::Answer(3), &[], 8)).0, LIMIT);
    assert!(lab.call(io, Function::Answer(0), &[], 8).is_ok());
    assert!(lab.call(io, Function::Query(3), &body, 0).is_ok());
    let other = lab.host(HOST, 10).io;
    assert!(lab.call(other, Function::Query(1), &body, 0).is_ok(), "others have their own");
    let plans: Vec<u64> = (0..2).map(|_| lab.number(io, Function::Prepare, &body).unwrap()).collect();
    assert_eq!(lab.number(io, Function::Prepare, &body), Err(LIMIT));
    assert_eq!(lab.number(io, Function::Forget(plans[0]), &[]), Ok(0));
    assert!(lab.number(io, Function::Prepare, &body).unwrap() > plans[1], "no number is given twice");
}

/// Where one half is refused, the other does not wait for it.
#[test]
fn a_refused_half_ends_the_other() {
    let limits = FunctionLimits { queries_max: 1, ..FunctionLimits::default() };
    let (mut lab, io, body) = lab(limits);
    // The query is refused while its answer waits.
    let asked = lab.send(io, 1, Function::Answer(5), &[], 4096);
    assert!(lab.answer(io, asked).is_none());
    assert_eq!(end(lab.call(io, Function::Query(5), &[0; 6000], 0)).0, INVALID);
    assert_eq!(end(lab.answer(io, asked).expect("it does not wait")).0, INVALID);
    // Either is refused before the other comes.
    assert!(lab.call(io, Function::Query(1), &body, 0).is_ok());
    assert_eq!(end(lab.call(io, Function::Query(2), &body, 0)).0, LIMIT);
    assert!(lab.call(io, Function::Answer(1), &[], 8).is_ok(), "there is room now");
    let asked = lab.send(io, 1, Function::Answer(2), &[], 4096);
    assert_eq!(end(lab.answer(io, asked).expect("it does not wait")).0, LIMIT);
    assert!(lab.call(io, Function::Query(1), &body, 0).is_ok());
    assert_eq!(end(lab.call(io, Function::Answer(3), &[], 8)).0, LIMIT);
    assert!(lab.call(io, Function::Answer(1), &[], 8).is_ok());
    assert_eq!(end(lab.call(io, Function::Query(3), &body, 0)).0, LIMIT, "nobody would ask for it");
    // The same token may be used again, by the whole pair or by the half that was refused.
    for token in [2, 3] {
        assert!(lab.call(io, Function::Query(token), &body, 0).is_ok());
        assert!(lab.call(io, Function::Answer(token), &[], 8).is_ok());
    }
    assert!(lab.call(io, Function::Query(1), &body, 0).is_ok());
    assert_eq!(end(lab.call(io, Function::Query(6), &body, 0)).0, LIMIT);
    assert!(lab.call(io, Function::Answer(1), &[], 8).is_ok());
    assert!(lab.call(io, Function::Query(6), &body, 0).is_ok(), "sent again");
    assert!(lab.call(io, Function::Answer(6), &[], 8).is_ok());
    lab.check_rest();
}

/// A target that refuses one half of each pair, and never answers the other.
struct OneSided {
    refuses: fn(&Function) -> bool,
}

impl Transport for OneSided {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        match command.function {
            Function::Describe => {
                let described = Description { version: VERSION.into(), ..Description::default() };
                Ok(CommandAnswer { result: 0, data: described.as_bytes().to_vec() })
            }
            Function::Query(_) | Function::Answer(_) if !(self.refuses)(&command.function) => {
                std::future::pending().await
            }
            Function::Query(_) | Function::Answer(_) => {
                Err(TransportError::Status { status: LIMIT, result: 0 })
            }
            _ => Ok(CommandAnswer { result: 1, data: Vec::new() }),
        }
    }

    fn transfer_max(&self) -> usize {
        4096
    }

    fn exchange_max(&self) -> Option<usize> {
        None
    }
}

#[test]
fn a_client_does_not_wait_for_what_nobody_answers() {
    let refusals: [fn(&Function) -> bool; 2] =
        [|half| matches!(half, Function::Query(_)), |half| matches!(half, Function::Answer(_))];
    for refuses in refusals {
        let mut asked = pin!(async {
            let session = Session::begin(OneSided { refuses }, NamespaceId(1)).await.unwrap();
            let query = session.query(&session.program("obey", None), &[session.named("file")]).unwrap();
            // Longer than what fits into a command.
            session.ask(&query, Read { file: 0, offset: 0, len: 512 }, &[1; 100], 8).await
        });
        let answered = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(answered, Poll::Ready(Err(PushError::Detour(Detour::Limit))));
    }
}
