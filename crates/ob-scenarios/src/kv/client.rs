//! A client: it asks, several things at a time now and then, and writes down what it was told and when.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ob_core::{Clock, ConnectionId, Instant, Net, NetEvent, Received, Sent};
use ob_sim::history::{Command, Expiry, Operation, Reply, Returned};
use ob_sim::{Failure, Network, NodeId, Rng, SimClock, SimNet};

use super::plan::Plan;
use super::{CARD, PORT};

/// Keys that all clients use: some of them the card never answers for.
pub(super) const KEYS: [&str; 6] =
    ["a", "b", "counter", "d", "e-which-is-longer-than-32-bytes-and-so-the-hosts", "f"];
/// Keys that are read and written now and then, so that the table has not room for all.
const OTHER_KEYS: u64 = 16;
/// How long a client waits for a reply, or for more of it: what comes from far through a small window takes longer as a whole.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) type History = Vec<Operation<Command, Reply>>;

pub(super) struct Client {
    number: u32,
    net: SimNet,
    clock: SimClock,
    rng: Rng,
    /// Which of the ways to draw a command there are, and for which keys.
    arms: Vec<u64>,
    keys: &'static [&'static str],
    /// Requests on their way at once.
    pipeline: usize,
    connection: Option<ConnectionId>,
    is_connected: bool,
    again_at: Instant,
    connecting_since: Instant,
    /// When it heard anything of the card last.
    heard_at: Instant,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// What the network fills.
    chunk: Box<[u8; 4096]>,
    /// What is on its way, by place in the history.
    waiting: VecDeque<usize>,
    values: u64,
    /// Replies, and requests whose end nobody knows.
    pub(super) answered: u64,
    pub(super) lost: u64,
    /// How often it has waited as long as it would.
    pub(super) out_of_patience: u64,
    /// Those that were not done, by place in the history.
    pub(super) not_done: Vec<usize>,
}

impl Client {
    pub(super) fn new(number: u32, network: &Network, clock: SimClock, rng: Rng, plan: &Plan) -> Self {
        Self {
            number,
            net: network.attach(NodeId(1 + number as usize)),
            clock,
            rng,
            arms: plan.arms.clone(),
            keys: plan.keys,
            pipeline: plan.pipeline,
            connection: None,
            is_connected: false,
            again_at: Instant::default(),
            connecting_since: Instant::default(),
            heard_at: Instant::default(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            chunk: Box::new([0; 4096]),
            waiting: VecDeque::new(),
            values: 0,
            answered: 0,
            lost: 0,
            out_of_patience: 0,
            not_done: Vec::new(),
        }
    }

    /// Whether it is connected and waits for nothing.
    pub(super) fn may_ask(&self) -> bool {
        self.is_connected && self.waiting.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.connection.is_none().then_some(self.again_at)
    }

    /// Asks for something, if it may.
    pub(super) fn issue(&mut self, history: &mut History) -> bool {
        if !self.is_connected
            || self.waiting.len() >= self.pipeline
            || (!self.waiting.is_empty() && self.rng.one_in(2))
        {
            return false;
        }
        let command = self.draw();
        self.ask(command, history);
        true
    }

    /// Reads every key, one after the other.
    pub(super) fn look(&mut self, history: &mut History) {
        for key in KEYS {
            self.ask(Command::Get(bytes(key)), history);
        }
    }

    pub(super) fn ask(&mut self, command: Command, history: &mut History) {
        encode(&command, &mut self.outgoing);
        let called = self.clock.now().nanoseconds();
        self.waiting.push_back(history.len());
        let session = self.connection.map(|connection| connection.0 << 8 | u64::from(self.number));
        history.push(Operation {
            client: self.number,
            session,
            command,
            called,
            returned: None,
            gone_by: None,
        });
    }

    fn key(&mut self) -> Arc<[u8]> {
        bytes(self.keys[self.rng.index(self.keys.len())])
    }

    fn any_key(&mut self) -> Arc<[u8]> {
        let are_all = self.keys.len() == KEYS.len();
        if are_all && self.rng.one_in(3) { other_key(self.rng.below(OTHER_KEYS)) } else { self.key() }
    }

    fn value(&mut self) -> Arc<[u8]> {
        self.values += 1;
        if self.rng.one_in(4) {
            return bytes(&self.rng.below(1000).to_string());
        }
        let mut text = format!("{}.{}.", self.number, self.values);
        let most = *self.rng.choose(&[8, 100, 5000]).unwrap_or(&8);
        let padding = self.rng.below(most) as usize;
        text.extend(std::iter::repeat_n('x', padding));
        bytes(&text)
    }

    fn draw(&mut self) -> Command {
        let key = self.key();
        let arm = self.arms.get(self.rng.index(self.arms.len())).copied().unwrap_or_default();
        match arm {
            0..=9 => Command::Get(self.any_key()),
            10..=12 => Command::GetMany(vec![key, self.key(), self.key()]),
            13 => Command::Exists(vec![key, self.key()]),
            14 => Command::Length(key),
            15..=19 => Command::Set(self.any_key(), self.value(), Expiry::Never),
            21 => Command::Set(key, self.value(), Expiry::After(1_000_000 * self.rng.range(1..40))),
            20 | 22 if self.rng.one_in(2) => Command::Delete(vec![self.any_key()]),
            20 | 22 => Command::SetIfAbsent(key, self.value()),
            23 | 24 => {
                let other = self.key();
                let value = self.value();
                Command::SetMany(vec![(key, value), (other, self.value())])
            }
            25 => Command::Delete(vec![key, self.key()]),
            26 => Command::GetAndDelete(key),
            27 | 28 => Command::Increment(bytes("counter"), 1),
            29 => Command::Append(key, bytes("+")),
            30 if self.rng.one_in(3) => Command::Clear,
            30 => Command::Expire(key, Expiry::Never),
            _ => Command::Expire(key, Expiry::After(1_000_000 * self.rng.range(1..40))),
        }
    }

    pub(super) fn turn(&mut self, history: &mut History) -> Result<(), Failure> {
        let now = self.clock.now();
        if self.connection.is_none() && self.again_at <= now {
            self.connection = self.net.connect(Network::address(CARD, PORT)).ok();
            self.again_at = now + Duration::from_millis(1);
            self.connecting_since = now;
        }
        if let Some(connection) = self.connection
            && !self.is_connected
            && now.since(self.connecting_since) > PATIENCE
        {
            self.net.close(connection);
            self.cut();
        }
        while let Some(event) = self.net.poll() {
            match event {
                NetEvent::Connected(_) => (self.is_connected, self.heard_at) = (true, now),
                NetEvent::Closed { connection, .. } if Some(connection) == self.connection => self.cut(),
                _ => {}
            }
        }
        let Some(connection) = self.connection.filter(|_| self.is_connected) else { return Ok(()) };
        loop {
            match self.net.receive(connection, &mut self.chunk[..]) {
                Ok(Received::Bytes(count)) => {
                    self.incoming.extend_from_slice(&self.chunk[..count]);
                    self.heard_at = now;
                }
                Ok(Received::Nothing) => break,
                Ok(Received::End) | Err(_) => {
                    self.net.close(connection);
                    self.cut();
                    return Ok(());
                }
            }
        }
        self.take_replies(history)?;
        // What has come while it was stopped has come in time.
        let oldest = self.waiting.front().map(|place| Instant::from_nanoseconds(history[*place].called));
        if oldest.is_some_and(|oldest| now.since(oldest.max(self.heard_at)) > PATIENCE) {
            // A machine that has lost its power says nothing.
            self.out_of_patience += 1;
            self.net.close(connection);
            self.cut();
            return Ok(());
        }
        while !self.outgoing.is_empty() {
            match self.net.send(connection, &self.outgoing) {
                Ok(Sent(0)) | Err(_) => break,
                Ok(Sent(count)) => drop(self.outgoing.drain(..count)),
            }
        }
        Ok(())
    }

    /// The connection is no more: of what was on its way nobody knows the end.
    fn cut(&mut self) {
        self.lost += self.waiting.len() as u64;
        self.waiting.clear();
        self.outgoing.clear();
        self.incoming.clear();
        (self.connection, self.is_connected) = (None, false);
        self.again_at = self.clock.now() + Duration::from_millis(self.rng.below(20));
    }

    fn take_replies(&mut self, history: &mut History) -> Result<(), Failure> {
        while let Some((value, len)) = Value::parse(&self.incoming) {
            self.incoming.drain(..len);
            let Some(place) = self.waiting.pop_front() else {
                return Err(Failure::new(format!(
                    "client {} was told {value:?} and had not asked",
                    self.number
                )));
            };
            let operation = &mut history[place];
            match value.reply(&operation.command) {
                Told::Reply(reply) => {
                    self.answered += 1;
                    operation.returned = Some(Returned { at: self.clock.now().nanoseconds(), reply });
                }
                Told::Nothing => self.lost += 1,
                Told::NotDone => self.not_done.push(place),
                Told::Wrong => {
                    return Err(Failure::new(format!("{} was answered with {value:?}", operation.command)));
                }
            }
        }
        Ok(())
    }
}

/// Every key that a client may ask for.
pub(super) fn all_keys() -> impl Iterator<Item = Arc<[u8]>> {
    KEYS.into_iter().map(bytes).chain((0..OTHER_KEYS).map(other_key))
}

fn other_key(number: u64) -> Arc<[u8]> {
    bytes(&format!("k{number}"))
}

pub(super) fn bytes(text: &str) -> Arc<[u8]> {
    Arc::from(text.as_bytes())
}

fn encode(command: &Command, into: &mut Vec<u8>) {
    let text = |text: &str| text.as_bytes().to_vec();
    let milliseconds = |nanoseconds: &u64| text(&(nanoseconds / 1_000_000).to_string());
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut put = |name: &str, keys: &mut dyn Iterator<Item = &Arc<[u8]>>| {
        words.push(text(name));
        words.extend(keys.map(|key| key.to_vec()));
    };
    match command {
        Command::Get(key) => put("GET", &mut [key].into_iter()),
        Command::GetMany(keys) => put("MGET", &mut keys.iter()),
        Command::Exists(keys) => put("EXISTS", &mut keys.iter()),
        Command::Length(key) => put("STRLEN", &mut [key].into_iter()),
        Command::Set(key, value, expiry) => {
            put("SET", &mut [key, value].into_iter());
            if let Expiry::After(time) = expiry {
                words.extend([text("PX"), milliseconds(time)]);
            }
        }
        Command::SetIfAbsent(key, value) => put("SETNX", &mut [key, value].into_iter()),
        Command::SetMany(pairs) => put("MSET", &mut pairs.iter().flat_map(|(key, value)| [key, value])),
        Command::Delete(keys) => put("DEL", &mut keys.iter()),
        Command::GetAndDelete(key) => put("GETDEL", &mut [key].into_iter()),
        Command::Increment(key, by) => {
            put("INCRBY", &mut [key].into_iter());
            words.push(text(&by.to_string()));
        }
        Command::Append(key, value) => put("APPEND", &mut [key, value].into_iter()),
        Command::Expire(key, Expiry::After(time)) => {
            put("PEXPIRE", &mut [key].into_iter());
            words.push(milliseconds(time));
        }
        Command::Expire(key, _) => put("PERSIST", &mut [key].into_iter()),
        Command::Clear => put("FLUSHALL", &mut [].into_iter()),
    }
    into.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        into.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        into.extend_from_slice(&word);
        into.extend_from_slice(b"\r\n");
    }
}

/// A reply as it came.
#[derive(Debug)]
enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Value>),
}

/// What a reply means for a history.
enum Told {
    Reply(Reply),
    /// Nobody knows whether it was done.
    Nothing,
    /// It was not done.
    NotDone,
    /// No store says that.
    Wrong,
}

impl Value {
    /// The reply at the front, and how many bytes it has.
    fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(bytes.get(1..end)?).ok()?;
        let at = end + 2;
        match bytes.first()? {
            b'+' => Some((Self::Simple(line.to_owned()), at)),
            b'-' => Some((Self::Error(line.to_owned()), at)),
            b':' => Some((Self::Integer(line.parse().ok()?), at)),
            b'$' if line == "-1" => Some((Self::Bulk(None), at)),
            b'$' => {
                let len: usize = line.parse().ok()?;
                let value = bytes.get(at..at + len)?.to_vec();
                bytes.get(at + len..at + len + 2)?;
                Some((Self::Bulk(Some(value)), at + len + 2))
            }
            b'*' => {
                let count: usize = line.parse().ok()?;
                let (mut values, mut at) = (Vec::new(), at);
                for _ in 0..count {
                    let (value, len) = Self::parse(bytes.get(at..)?)?;
                    values.push(value);
                    at += len;
                }
                Some((Self::Array(values), at))
            }
            _ => None,
        }
    }

    fn reply(&self, command: &Command) -> Told {
        let value = |value: &Option<Vec<u8>>| value.as_ref().map(|value| Arc::from(value.as_slice()));
        match (self, command) {
            (Self::Error(text), _) if text.starts_with("LOADING ") => Told::NotDone,
            (Self::Error(text), _) if text.contains("may have applied it or not") => Told::Nothing,
            (Self::Error(text), Command::Increment(..)) if text.contains("not an integer") => {
                Told::Reply(Reply::Refused)
            }
            (Self::Simple(text), Command::Set(..) | Command::SetMany(_) | Command::Clear) if text == "OK" => {
                Told::Reply(Reply::Done)
            }
            (Self::Integer(number), _) => Told::Reply(Reply::Integer(*number)),
            (Self::Bulk(found), Command::Get(_) | Command::GetAndDelete(_)) => {
                Told::Reply(value(found).map_or(Reply::Nil, Reply::Value))
            }
            (Self::Array(values), Command::GetMany(keys)) if values.len() == keys.len() => {
                let values = values.iter().map(|found| match found {
                    Self::Bulk(found) => value(found),
                    _ => None,
                });
                Told::Reply(Reply::Values(values.collect()))
            }
            _ => Told::Wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ob_sim::{NetPlan, PerMillion, Trace};

    #[test]
    fn a_client_gives_up_when_it_hears_nothing_and_not_before() {
        let clock = SimClock::new();
        let far = NetPlan {
            latency: Duration::from_millis(150)..Duration::from_millis(151),
            window: 4 << 10,
            spurious: PerMillion::NEVER,
            ..NetPlan::default()
        };
        let network = Network::new(far, Rng::new(1), Trace::new(clock.clone()));
        let mut card = network.attach(CARD);
        card.listen(Network::address(CARD, PORT)).unwrap();
        let mut rng = Rng::new(2);
        let plan = Plan::draw(&mut rng, true);
        let mut client = Client::new(0, &network, clock.clone(), rng, &plan);
        let mut history = History::new();
        client.look(&mut history);
        let mut reply = format!("$40000\r\n{}\r\n", "x".repeat(40_000)).into_bytes();
        let mut accepted = None;
        let mut answered_at = None;
        while client.out_of_patience == 0 {
            while let Some(event) = card.poll() {
                if let NetEvent::Accepted { connection, .. } = event {
                    accepted = Some(connection);
                }
            }
            if let Some(connection) = accepted.filter(|_| !reply.is_empty()) {
                let Sent(count) = card.send(connection, &reply).unwrap();
                reply.drain(..count);
            }
            client.turn(&mut history).unwrap();
            if client.answered == 1 {
                answered_at.get_or_insert(clock.now());
            }
            clock.advance_to(clock.now() + Duration::from_millis(1));
        }
        // One reply took longer than it waits, and the next never came.
        let answered_at = answered_at.unwrap();
        assert!(answered_at > Instant::default() + 2 * PATIENCE, "{answered_at:?}");
        let waited = clock.now().since(answered_at);
        assert!(waited > PATIENCE && waited < PATIENCE + Duration::from_millis(5), "{waited:?}");
    }
}
