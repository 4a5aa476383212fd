//! Halves that are killed under load: what the card knows it goes on telling, what was promised is there afterwards, and
//! nobody is told what is no longer so.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;

use super::support::kv::{Service, Setup, wait_until, wait_until_the_card_serves};
use super::support::resp::{Client, Value};

const STORED: u64 = 50;
const WRITERS: usize = 4;
const READERS: usize = 2;
const KEYS_OF_A_WRITER: usize = 8;

/// Clients at work, and what they were told.
struct Load {
    address: SocketAddr,
    /// Whether a connection may end: the card's death ends it, the host's does not.
    may_reconnect: bool,
    is_over: AtomicBool,
    /// By writer and key: the last value whose SET was answered. Values only grow.
    answered: [[AtomicU64; KEYS_OF_A_WRITER]; WRITERS],
    /// And the last one that was sent.
    tried: [[AtomicU64; KEYS_OF_A_WRITER]; WRITERS],
    /// By reader.
    reads: [AtomicU64; READERS],
    writes: AtomicU64,
    refusals: AtomicU64,
}

impl Load {
    fn new(service: &Service, may_reconnect: bool) -> Self {
        let zeroes = || [(); WRITERS].map(|()| [(); KEYS_OF_A_WRITER].map(|()| AtomicU64::new(0)));
        Self {
            address: service.address,
            may_reconnect,
            is_over: AtomicBool::new(false),
            answered: zeroes(),
            tried: zeroes(),
            reads: [(); READERS].map(|()| AtomicU64::new(0)),
            writes: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        for writer in 0..WRITERS {
            scope.spawn(move || self.write(writer));
            scope.spawn(move || self.watch(writer));
        }
        for reader in &self.reads {
            scope.spawn(move || self.read(reader));
        }
    }

    /// Waits until each reader has read so much more.
    fn wait_for_more_reads(&self, what: &str, more: u64) {
        for reads in &self.reads {
            self.wait_for_more(what, reads, more);
        }
    }

    /// Counts until so many more have been counted.
    fn wait_for_more(&self, what: &str, count: &AtomicU64, more: u64) {
        let wanted = count.load(Ordering::SeqCst) + more;
        wait_until(what, || count.load(Ordering::SeqCst) >= wanted || self.is_over());
        assert!(!self.is_over(), "a client has failed");
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// One request; nothing where the connection ended and there is another one now.
    fn ask(&self, client: &mut Client, line: &str) -> Option<Value> {
        match client.ask_line(line) {
            Ok(answer) => Some(answer),
            Err(error) => {
                assert!(self.may_reconnect, "`{line}` ended the connection: {error}");
                wait_until("a client is let in again", || {
                    Client::connect(self.address).map(|again| *client = again).is_ok() || self.is_over()
                });
                None
            }
        }
    }

    fn write(&self, writer: usize) {
        let _farewell = Farewell(&self.is_over);
        let mut client = Client::connect(self.address).unwrap();
        for value in 1.. {
            if self.is_over() {
                return;
            }
            let key = usize::try_from(value).unwrap() % KEYS_OF_A_WRITER;
            self.tried[writer][key].store(value, Ordering::SeqCst);
            match self.ask(&mut client, &format!("SET written:{writer}:{key} {value}")) {
                Some(answer) if answer == Value::ok() => {
                    self.answered[writer][key].store(value, Ordering::SeqCst);
                    self.writes.fetch_add(1, Ordering::SeqCst);
                }
                Some(Value::Error(_)) => {
                    self.refusals.fetch_add(1, Ordering::SeqCst);
                }
                Some(other) => panic!("written:{writer}:{key}: {other:?}"),
                None => {}
            }
        }
    }

    /// Reads what a writer writes, on a connection of its own: never less than what had been answered before.
    fn watch(&self, writer: usize) {
        let _farewell = Farewell(&self.is_over);
        let mut client = Client::connect(self.address).unwrap();
        for key in (0..KEYS_OF_A_WRITER).cycle() {
            if self.is_over() {
                return;
            }
            let floor = self.answered[writer][key].load(Ordering::SeqCst);
            let Some(answer) = self.ask(&mut client, &format!("GET written:{writer}:{key}")) else {
                continue;
            };
            if let Some(got) = number(&answer) {
                let ceiling = self.tried[writer][key].load(Ordering::SeqCst);
                let range = floor..=ceiling;
                assert!(range.contains(&got), "written:{writer}:{key} is {got}, and should be in {range:?}");
            }
        }
    }

    /// Reads what the card can answer by itself, always, without a single error.
    fn read(&self, reads: &AtomicU64) {
        let _farewell = Farewell(&self.is_over);
        let mut client = Client::connect(self.address).unwrap();
        for number in (0..STORED).cycle() {
            if self.is_over() {
                return;
            }
            match self.ask(&mut client, &format!("GET stored:{number}")) {
                Some(answer) if answer == Value::bytes(stored_value(number)) => {
                    reads.fetch_add(1, Ordering::SeqCst);
                }
                // Where the card has died, its table is filled again when the host is there.
                Some(Value::Error(_)) if self.may_reconnect => {}
                Some(other) => panic!("stored:{number}: {other:?}"),
                None => {}
            }
        }
    }

    /// Everything that was answered is there, unless what was tried after it is.
    fn check(&self) {
        let mut client = Client::connect(self.address).unwrap();
        for writer in 0..WRITERS {
            for key in 0..KEYS_OF_A_WRITER {
                let answer = client.ask_line(&format!("GET written:{writer}:{key}")).unwrap();
                let [answered, tried] =
                    [&self.answered, &self.tried].map(|values| values[writer][key].load(Ordering::SeqCst));
                let got = number(&answer).unwrap();
                // Any of those that were refused, or lost, after the last answer may have been executed.
                let is_right = (answered..=tried).contains(&got);
                assert!(is_right, "written:{writer}:{key} is {got}; {answered} was answered, {tried} tried");
            }
        }
        for number in 0..STORED {
            let got = client.ask_line(&format!("GET stored:{number}")).unwrap();
            assert!(got == Value::bytes(stored_value(number)), "stored:{number}: {got:?}");
        }
    }
}

/// Ends the load when a client is done, or has failed.
struct Farewell<'a>(&'a AtomicBool);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What a key holds, 0 for nothing; no number for an error.
fn number(answer: &Value) -> Option<u64> {
    match answer {
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).parse().unwrap()),
        Value::Nothing => Some(0),
        Value::Error(_) => None,
        other => panic!("{other:?}"),
    }
}

fn stored_value(number: u64) -> String {
    format!("{number},").repeat(1 + usize::try_from(number).unwrap() * 40)
}

fn store(service: &Service) {
    let mut client = service.client();
    for number in 0..STORED {
        let line = format!("SET stored:{number} {}", stored_value(number));
        assert_eq!(client.ask_line(&line).unwrap(), Value::ok());
    }
}

/// Has clients read and write while something happens to the service, and looks at what they were told afterwards.
fn under_load(service: &mut Service, may_reconnect: bool, happens: impl FnOnce(&mut Service, &Load)) {
    let load = Load::new(service, may_reconnect);
    std::thread::scope(|scope| {
        let farewell = Farewell(&load.is_over);
        load.start(scope);
        happens(service, &load);
        drop(farewell);
    });
    load.check();
}

#[test]
fn stored_reads_go_on_while_the_host_is_dead_and_writes_are_refused() {
    kill_hosts(Setup::CARD);
}

#[test]
fn programs_answer_stored_reads_while_the_host_is_dead() {
    let service = kill_hosts(Setup::PROGRAMS);
    assert!(service.answered_by_programs() > 10 * STORED, "{}", service.offload(&["ls"]));
}

fn kill_hosts(setup: Setup) -> Service {
    let mut service = Service::start(setup);
    store(&service);
    let keys: Vec<String> = (0..STORED).map(|number| format!("stored:{number}")).collect();
    wait_until_the_card_serves(&mut service.client(), &keys);
    under_load(&mut service, false, |service, load| {
        for _ in 0..3 {
            load.wait_for_more("writes are answered", &load.writes, 200);
            // The card serves a connection that its host has admitted, which each life does with the first answer.
            load.wait_for_more_reads("reads are answered", 2 * STORED);
            service.kill_host();
            load.wait_for_more_reads("reads go on", 2 * STORED);
            load.wait_for_more("writes are refused", &load.refusals, 20);
            service.start_host();
            // On the same connections: nobody was cut off.
            load.wait_for_more("writes are answered again", &load.writes, 20);
        }
    });
    service
}

#[test]
fn what_was_answered_is_there_after_the_card_was_killed() {
    kill_cards(Setup::CARD);
}

#[test]
fn programs_are_there_again_after_the_card_was_killed() {
    let service = kill_cards(Setup::PROGRAMS);
    // A card serves before its programs are verified and compiled again.
    let mut client = service.client();
    wait_until("programs answer", || {
        assert_eq!(client.ask(&["GET", "stored:1"]).unwrap(), Value::bytes(stored_value(1)));
        service.answered_by_programs() > 0
    });
}

fn kill_cards(setup: Setup) -> Service {
    let mut service = Service::start(setup);
    store(&service);
    under_load(&mut service, true, |service, load| {
        for _ in 0..3 {
            load.wait_for_more("writes are answered", &load.writes, 200);
            service.kill_card();
            service.start_card();
            load.wait_for_more("writes are answered again", &load.writes, 20);
            load.wait_for_more_reads("reads are answered again", STORED);
        }
    });
    // What the new card's table has lost comes back to it.
    service.wait_until_the_card_serves("stored:1");
    service
}

#[test]
fn what_was_answered_is_there_after_both_were_killed() {
    let mut service = Service::start(Setup::TIGHT);
    store(&service);
    under_load(&mut service, true, |service, load| {
        for turn in 0..4 {
            load.wait_for_more("writes are answered", &load.writes, 200);
            if turn % 2 == 0 {
                service.kill_card();
                service.kill_host();
            } else {
                service.kill_host();
                service.kill_card();
            }
            service.start_card();
            service.start_host();
            load.wait_for_more("writes are answered again", &load.writes, 20);
        }
    });
}

/// Without a card in between: the host's death ends connections, and loses nothing that was answered.
#[test]
fn what_was_answered_is_there_after_a_host_that_does_it_all_was_killed() {
    let mut service = Service::start(Setup::HOST);
    store(&service);
    under_load(&mut service, true, |service, load| {
        for _ in 0..3 {
            load.wait_for_more("writes are answered", &load.writes, 200);
            service.kill_host();
            service.start_host();
            load.wait_for_more("writes are answered again", &load.writes, 20);
        }
    });
}
