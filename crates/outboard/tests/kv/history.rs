//! What clients saw while halves were killed, held against a store that does one thing at a time.
//!
//! `OUTBOARD_KV_DEATHS` sets how many there are, `OUTBOARD_KV_SEED` which. Many are in several histories, one after the other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use ob_sim::Rng;
use ob_sim::history::{Command, Expiry, KvSpec, Limits, Operation, Reply, Returned, Verdict, check};
use outboard::halves::Half;

use super::support::kv::{KV_GET, Service, Setup, wait_until};
use super::support::resp::{Client, Value, request};

const CLIENTS: u32 = 6;
/// Requests that a client sends at once, and those that it may have under way before it does.
const BURST_MAX: u64 = 4;
const UNDER_WAY_MAX: usize = 5;
/// What the card is to answer in each of the times when nothing is changed.
const SERVED_MIN: u64 = 50;
/// Keys are used in pairs, so that those of a pair are the only ones which one request may name together.
const PAIRS: u64 = 2;
/// Both sides of an expiry are told by the system's clock in milliseconds, and the history by one that is never set.
const MARGIN_NS: u64 = 25_000_000;
const MS: u64 = 1_000_000;

/// How often more is recorded until the log has been compacted: a machine that is slow writes no less for it.
const COMPACTION_WAITS_MAX: u32 = 40;

/// Deaths of one history: what nobody was answered stays possible to its end, and to judge a history of a thousand deaths takes more memory than
/// machines have.
const DEATHS_OF_ONE: u64 = 50;

/// Histories that are recorded until one can be judged.
const HISTORIES_MAX: u64 = 3;

type Recorded = Operation<Command, Reply>;
type History = Vec<Recorded>;

#[test]
fn histories_are_linearizable_while_halves_are_killed() {
    judge_while_halves_are_killed(Setup::TIGHT);
}

#[test]
fn histories_are_linearizable_while_halves_are_killed_and_programs_come_and_go() {
    judge_while_halves_are_killed(Setup { by_programs: true, ..Setup::TIGHT });
}

fn judge_while_halves_are_killed(setup: Setup) {
    let seed = setting("OUTBOARD_KV_SEED", 1);
    let deaths = setting("OUTBOARD_KV_DEATHS", 8);
    for first in (0..deaths).step_by(DEATHS_OF_ONE as usize) {
        judge_one_history(setup, seed + first, DEATHS_OF_ONE.min(deaths - first));
    }
}

fn judge_one_history(setup: Setup, seed: u64, deaths: u64) {
    // A history that is too hard to judge says nothing: then another one is recorded.
    let (history, verdict) = (0..HISTORIES_MAX)
        .map(|attempt| {
            let (history, Tally { served, removed, by_programs }) = recorded(setup, seed + attempt, deaths);
            let unknown = history.iter().filter(|operation| operation.returned.is_none()).count();
            println!(
                "{} operations, {unknown} without an answer, {served} by the card, {by_programs} by programs; \
                 {removed} parts were removed",
                history.len()
            );
            assert!(removed > 0, "the log was not compacted meanwhile");
            assert_eq!(by_programs > 0, setup.by_programs, "programs answer where there are some");
            let verdict = judged(&history);
            (history, verdict)
        })
        .find(|(_, verdict)| !matches!(verdict, Verdict::GaveUp { .. }))
        .expect("no history could be judged");
    assert!(verdict.is_linearizable(), "seed {seed}: {verdict}");
    // One answer that was right before and no longer is, in this very history, would have been found.
    let verdict = judged(&with_a_stale_read(history));
    assert!(matches!(verdict, Verdict::Violated(_)), "a stale read was not found: {verdict}");
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn judged(history: &History) -> Verdict {
    check(&KvSpec { margin: MARGIN_NS }, history, Limits::default())
}

/// What has happened while a history was recorded.
#[derive(Default)]
struct Tally {
    /// Requests that the card has answered while nothing was changed.
    served: u64,
    /// Parts of the log that were compacted away by all lives of the host.
    removed: u64,
    /// GETs that programs have answered in all lives of the card.
    by_programs: u64,
}

/// What clients saw.
fn recorded(setup: Setup, seed: u64, deaths: u64) -> (History, Tally) {
    let mut service = Service::start(setup);
    let mut rng = Rng::new(seed).fork("deaths");
    let recorder = Recorder {
        address: service.address,
        begun: Instant::now(),
        is_over: AtomicBool::new(false),
        is_quiet: AtomicBool::new(false),
        done: AtomicU64::new(0),
        history: Mutex::default(),
    };
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        let farewell = Farewell(&recorder.is_over);
        for client in 0..CLIENTS {
            let rng = Rng::new(seed).fork_numbered("client", client.into());
            let recorder = &recorder;
            scope.spawn(move || recorder.work(client, rng));
        }
        for death in 0..deaths {
            recorder.wait_for_more(200 + rng.below(1000));
            if death % 2 == 0 {
                tally.served += recorder.wait_until_the_card_serves(&service);
            }
            if setup.by_programs {
                recorder.change_programs(&service);
            }
            let killed = rng.below(5);
            if !matches!(killed, 2 | 3) {
                tally.removed += parts_removed(&service);
            }
            if !matches!(killed, 0 | 1) {
                tally.by_programs += service.answered_by_programs();
            }
            match killed {
                0 | 1 => service.kill_host(),
                2 | 3 => service.kill_card(),
                _ => service.kill_both(),
            }
            service.start_what_is_dead();
        }
        recorder.wait_for_more(500);
        tally.removed += parts_removed(&service);
        for _ in 0..COMPACTION_WAITS_MAX {
            if tally.removed > 0 {
                break;
            }
            recorder.wait_for_more(500);
            tally.removed += parts_removed(&service);
        }
        tally.served += recorder.wait_until_the_card_serves(&service);
        tally.by_programs += service.answered_by_programs();
        drop(farewell);
    });
    (recorder.history.into_inner().unwrap(), tally)
}

/// How many parts of the log the host has removed in its present life.
fn parts_removed(service: &Service) -> u64 {
    service.wait_until_it_serves();
    service.log_facts().parts_removed
}

struct Recorder {
    address: SocketAddr,
    begun: Instant,
    is_over: AtomicBool,
    /// Clients only read for the time being.
    is_quiet: AtomicBool,
    done: AtomicU64,
    history: Mutex<History>,
}

impl Recorder {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn wait_for_more(&self, more: u64) {
        let wanted = self.done.load(Ordering::SeqCst) + more;
        wait_until("clients are answered", || self.done.load(Ordering::SeqCst) >= wanted || self.is_over());
        assert!(!self.is_over(), "a client has failed");
    }

    /// Programs are replaced, go and come back while clients ask.
    fn change_programs(&self, service: &Service) {
        for change in [&["load", KV_GET][..], &["rm", "kv_get"], &["load", KV_GET]] {
            service.offload(change);
            self.wait_for_more(50);
        }
    }

    /// Keys that are changed all the time are the host's. When nobody changes them they become the card's, however slow
    /// the machine is; gives how many requests the card has answered by then.
    fn wait_until_the_card_serves(&self, service: &Service) -> u64 {
        let before = service.served_by(Half::Card);
        self.is_quiet.store(true, Ordering::SeqCst);
        let mut served = 0;
        wait_until("the card answers clients", || {
            served = service.served_by(Half::Card) - before;
            served >= SERVED_MIN || self.is_over()
        });
        self.is_quiet.store(false, Ordering::SeqCst);
        assert!(!self.is_over(), "a client has failed");
        served
    }

    /// Sends requests in bursts, several of which are under way at once, and takes the answers as they come.
    fn work(&self, number: u32, mut rng: Rng) {
        let _farewell = Farewell(&self.is_over);
        let mut client = Client::connect(self.address).unwrap();
        let mut history = Vec::new();
        let (mut under_way, mut sequence, mut session) = (VecDeque::new(), 0, 0);
        // What is under way when it is over is waited for: who has failed is somebody else.
        while !(self.is_over() && under_way.is_empty()) {
            let sends = !self.is_over() && under_way.len() < UNDER_WAY_MAX && rng.one_in(2);
            let lost = if sends {
                let mut burst = Vec::new();
                for _ in 0..=rng.below(BURST_MAX) {
                    sequence += 1;
                    let command =
                        any_command(&mut rng, number, sequence, self.is_quiet.load(Ordering::SeqCst));
                    burst.extend(request(&words(&command)));
                    let session = Some(u64::from(number) << 32 | session);
                    let called = self.now();
                    under_way.push_back(Operation {
                        client: number,
                        session,
                        command,
                        called,
                        returned: None,
                        gone_by: None,
                    });
                }
                // Where the connection is over, receiving tells.
                let _ = client.send(&burst);
                Vec::new()
            } else {
                self.take(&mut client, &mut under_way, &mut history)
            };
            if !lost.is_empty() {
                // A half has died with it. When the next life answers, nothing of the earlier one is executed any more.
                session += 1;
                let gone_by = self.wait_until_served(&mut client).then(|| self.now());
                history.extend(lost.into_iter().map(|operation| Operation { gone_by, ..operation }));
            }
        }
        self.history.lock().unwrap().append(&mut history);
    }

    /// Takes one answer; where it is none, all of those that are under way. Gives what stays without an answer.
    fn take(
        &self,
        client: &mut Client,
        under_way: &mut VecDeque<Recorded>,
        history: &mut History,
    ) -> History {
        let mut lost = Vec::new();
        while let Some(mut operation) = under_way.pop_front() {
            let answer = client.receive();
            let at = self.now();
            operation.returned = answer.as_ref().ok().and_then(reply).map(|reply| Returned { at, reply });
            if operation.returned.is_some() {
                self.done.fetch_add(1, Ordering::SeqCst);
                history.push(operation);
            } else {
                lost.push(operation);
            }
            if lost.is_empty() {
                break;
            }
        }
        lost
    }

    /// Whether somebody answers again; otherwise it is over.
    fn wait_until_served(&self, client: &mut Client) -> bool {
        let mut is_served = false;
        wait_until("a client is served again", || {
            is_served = match client.ask_line("DBSIZE") {
                Ok(answer) => matches!(answer, Value::Number(_)),
                Err(_) => {
                    if let Ok(again) = Client::connect(self.address) {
                        *client = again;
                    }
                    false
                }
            };
            is_served || self.is_over()
        });
        is_served
    }
}

/// Ends the work when a client is done, or has failed.
struct Farewell<'a>(&'a AtomicBool);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn bytes(text: &str) -> std::sync::Arc<[u8]> {
    text.as_bytes().into()
}

/// Reads more often than changes, so that the card has something to answer; no value is set twice.
fn any_command(rng: &mut Rng, client: u32, sequence: u64, is_quiet: bool) -> Command {
    let pair = rng.below(PAIRS);
    let [first, second] = ["a", "b"].map(|half| bytes(&format!("{half}:{pair}")));
    let key = if rng.one_in(2) { first.clone() } else { second.clone() };
    let counter = bytes(&format!("counter:{pair}"));
    // Some values are longer than a block of the device.
    let filling = "x".repeat(usize::try_from(if rng.one_in(10) { rng.below(6000) } else { 5 }).unwrap());
    let value = |which: &str| bytes(&format!("{client}.{sequence}{which}{filling}"));
    match rng.below(if is_quiet { 13 } else { 24 }) {
        0..=7 => Command::Get(key),
        8 | 9 => Command::GetMany(vec![first, second]),
        10 => Command::Get(counter),
        11 => Command::Exists(vec![key]),
        12 => Command::Length(key),
        13..=15 => Command::Set(key, value(""), Expiry::Never),
        16 => Command::Set(key, value(""), Expiry::After(rng.range(20..400) * MS)),
        17 if rng.one_in(3) => Command::SetMany(vec![(key.clone(), value("a")), (key, value("b"))]),
        17 => Command::SetMany(vec![(first, value("a")), (second, value("b"))]),
        18 => Command::Delete(vec![key]),
        19 | 20 => Command::Increment(counter, 1),
        21 => Command::GetAndDelete(key),
        22 => Command::Expire(key, Expiry::After(rng.range(20..400) * MS)),
        _ => Command::Expire(key, Expiry::Never),
    }
}

fn words(command: &Command) -> Vec<Vec<u8>> {
    let named = |name: &str, rest: &[&[u8]]| {
        std::iter::once(name.as_bytes()).chain(rest.iter().copied()).map(<[u8]>::to_vec).collect()
    };
    match command {
        Command::Get(key) => named("GET", &[key]),
        Command::GetMany(keys) => named("MGET", &keys.iter().map(|key| &**key).collect::<Vec<_>>()),
        Command::Set(key, value, Expiry::Never) => named("SET", &[key, value]),
        Command::Set(key, value, Expiry::After(time)) => {
            named("SET", &[key, value, b"PX", (time / MS).to_string().as_bytes()])
        }
        Command::SetMany(pairs) => {
            named("MSET", &pairs.iter().flat_map(|(key, value)| [&**key, &**value]).collect::<Vec<_>>())
        }
        Command::Delete(keys) => named("DEL", &keys.iter().map(|key| &**key).collect::<Vec<_>>()),
        Command::Exists(keys) => named("EXISTS", &keys.iter().map(|key| &**key).collect::<Vec<_>>()),
        Command::Length(key) => named("STRLEN", &[key]),
        Command::Increment(key, by) => named("INCRBY", &[key, by.to_string().as_bytes()]),
        Command::GetAndDelete(key) => named("GETDEL", &[key]),
        Command::Expire(key, Expiry::After(time)) => {
            named("PEXPIRE", &[key, (time / MS).to_string().as_bytes()])
        }
        Command::Expire(key, Expiry::Never) => named("PERSIST", &[key]),
        other => panic!("nobody sends {other}"),
    }
}

/// What a reply says; nothing for an error, which leaves open whether the request was executed.
fn reply(answer: &Value) -> Option<Reply> {
    let value = |value: &Value| match value {
        Value::Bytes(bytes) => Some(bytes.as_slice().into()),
        Value::Nothing => None,
        other => panic!("{other:?}"),
    };
    Some(match answer {
        Value::Status(text) if text == "OK" => Reply::Done,
        Value::Bytes(bytes) => Reply::Value(bytes.as_slice().into()),
        Value::Nothing => Reply::Nil,
        Value::Number(number) => Reply::Integer(*number),
        Value::Many(values) => Reply::Values(values.iter().map(value).collect()),
        Value::Error(_) => return None,
        other => panic!("{other:?}"),
    })
}

/// The history with one GET that returned what another had returned, although a SET was called and answered in between.
fn with_a_stale_read(mut history: History) -> History {
    history.sort_by_key(|operation| operation.called);
    let found = (0..history.len()).find_map(|index| {
        let Command::Get(key) = &history[index].command else { return None };
        history[index].returned.as_ref()?;
        let before = |operation: &&Recorded, time: u64| {
            operation.returned.as_ref().is_some_and(|returned| returned.at < time)
        };
        let sets = |operation: &&Recorded| {
            matches!(&operation.command, Command::Set(set, _, Expiry::Never) if set == key)
        };
        let set = history.iter().rev().find(|one| sets(one) && before(one, history[index].called))?;
        let is_value = |operation: &&Recorded| {
            matches!(&operation.command, Command::Get(got) if got == key)
                && matches!(operation.returned, Some(Returned { reply: Reply::Value(_), .. }))
        };
        let earlier = history.iter().rev().find(|one| is_value(one) && before(one, set.called))?;
        Some((index, earlier.returned.as_ref()?.reply.clone()))
    });
    let (index, stale) = found.expect("a key that was read, set and read");
    history[index].returned.as_mut().unwrap().reply = stale;
    history
}
