//! The metadata store in etcd: threads that post what the core says, and wait for the answer.
//!
//! ```text
//!   Lines ─┬─▶ thread metadata-1: sessions ──┐
//!          └─▶ metadata-2 … 4: the rest ─────┴─▶ a connection each ══ HTTP ══▶ the first endpoint that takes it
//! ```
//!
//! Sessions have a thread to themselves: a renewal does not stand in line behind commits that wait for a cluster without a majority.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ob_volume::metadata::{
    EtcdOutcome, EtcdRequest, EtcdSessions, EtcdStep, HttpAnswer, MetadataAnswer, MetadataCompletion,
    MetadataError, MetadataOp, http_answer, http_post,
};

use super::metadata::{Errand, Shared};

/// How long one endpoint is tried, before another is.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// How long an answer may take. The shortest lease is two seconds, and is renewed at a third of it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of an answer that nobody understands which people are shown.
const SAID_LEN: usize = 200;

/// Where etcd is, and what is known of its sessions.
pub(super) struct Etcd {
    endpoints: Vec<SocketAddr>,
    /// The one that has last said something that is understood.
    preferred: AtomicUsize,
    /// Whether people know that none of them answers.
    is_told: AtomicBool,
    sessions: Mutex<EtcdSessions>,
}

/// What came of a request.
enum Posted {
    NotSent,
    NoAnswer,
    Answer { status: u16, body: Vec<u8> },
}

impl Etcd {
    pub(super) fn new(endpoints: Vec<SocketAddr>) -> Self {
        let (preferred, is_told) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { endpoints, preferred, is_told, sessions: Mutex::default() }
    }

    /// Does one operation, with as many requests as it needs.
    pub(super) fn perform(&self, op: &MetadataOp) -> Result<MetadataAnswer, MetadataError> {
        let lock = || self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut under_way = lock().begin(op.clone())?;
        let result = loop {
            let (posted, place) = self.post(&under_way.request());
            let outcome = match &posted {
                Posted::NotSent => EtcdOutcome::NotSent,
                Posted::NoAnswer => EtcdOutcome::NoAnswer,
                Posted::Answer { status, body } => EtcdOutcome::Answer { status: *status, body },
            };
            let step = under_way.took(outcome);
            self.judge(place, &posted, is_understood(&step));
            match step {
                EtcdStep::Done(result) => break result,
                EtcdStep::Next(next) => under_way = next,
            }
        };
        lock().over(op, &result);
        result
    }

    /// Posts to one endpoint after the other, until one has taken a byte of it; which.
    fn post(&self, request: &EtcdRequest) -> (Posted, usize) {
        let (count, first) = (self.endpoints.len(), self.preferred.load(Ordering::Relaxed));
        for place in (0..count).map(|number| (first + number) % count) {
            let Some(endpoint) = self.endpoints.get(place) else { continue };
            let posted = post_to(*endpoint, request);
            if !matches!(posted, Posted::NotSent) {
                return (posted, place);
            }
        }
        (Posted::NotSent, first)
    }

    /// The next request begins where this one ended well, or behind where it did not: a member that is none yet, or what stands before one
    /// that is gone, answers, too.
    fn judge(&self, place: usize, posted: &Posted, is_understood: bool) {
        let next = if is_understood { place } else { (place + 1) % self.endpoints.len().max(1) };
        self.preferred.store(next, Ordering::Relaxed);
        let at = self.endpoints.get(place);
        let at = at.map_or_else(|| "etcd".to_owned(), |endpoint| format!("etcd at {endpoint}"));
        self.tell((!is_understood).then(|| match posted {
            Posted::NotSent => "etcd is not reached at any of its endpoints".to_owned(),
            Posted::NoAnswer => format!("{at} does not answer in time"),
            Posted::Answer { status, body } => {
                let said = body.get(..body.len().min(SAID_LEN)).unwrap_or_default();
                format!("{at} answers with status {status}: {}", String::from_utf8_lossy(said).escape_debug())
            }
        }));
    }

    /// People hear when it does not answer any more, or says that it cannot, and when it does again.
    fn tell(&self, trouble: Option<String>) {
        if self.is_told.swap(trouble.is_some(), Ordering::Relaxed) != trouble.is_some() {
            match trouble {
                None => tracing::info!("etcd answers again"),
                Some(trouble) => tracing::warn!("{trouble}; it is asked again"),
            }
        }
    }
}

/// Whether what was answered says what became of the operation.
const fn is_understood(step: &EtcdStep) -> bool {
    !matches!(step, EtcdStep::Done(Err(MetadataError::Unknown | MetadataError::Unreachable)))
}

fn post_to(endpoint: SocketAddr, request: &EtcdRequest) -> Posted {
    let Ok(mut stream) = TcpStream::connect_timeout(&endpoint, CONNECT_WITHIN) else {
        return Posted::NotSent;
    };
    let deadline = Instant::now() + ANSWER_WITHIN;
    let bytes = http_post(&endpoint.to_string(), request.path, &request.body);
    match send(&mut stream, &bytes, deadline) {
        Ok(()) => {}
        Err(0) => return Posted::NotSent,
        Err(_) => return Posted::NoAnswer,
    }
    receive(&mut stream, deadline).map_or(Posted::NoAnswer, |(status, body)| Posted::Answer { status, body })
}

/// Sends all of it; else how much was.
fn send(stream: &mut TcpStream, bytes: &[u8], deadline: Instant) -> Result<(), usize> {
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
        let within = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_write_timeout(Some(within)).map_err(|_| sent)?;
        match stream.write(rest) {
            Ok(0) => return Err(sent),
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(sent),
        }
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, deadline: Instant) -> Option<(u16, Vec<u8>)> {
    let (mut bytes, mut more) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let within = deadline.checked_duration_since(Instant::now()).filter(|within| !within.is_zero())?;
        stream.set_read_timeout(Some(within)).ok()?;
        let count = match stream.read(&mut more) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return None,
        };
        bytes.extend_from_slice(more.get(..count)?);
        match http_answer(&bytes, count == 0) {
            HttpAnswer::Whole { status, body } => return Some((status, body)),
            HttpAnswer::Broken => return None,
            HttpAnswer::More => {}
        }
    }
}

/// One of the threads.
pub(super) fn serve(etcd: &Arc<Etcd>, shared: &Shared, is_for_sessions: bool) {
    let is_of_sessions = |op: &MetadataOp| {
        matches!(op, MetadataOp::Grant { .. } | MetadataOp::Renew { .. } | MetadataOp::Revoke { .. })
    };
    while let Some(Errand { asker, op }) = shared.wait_for(|op| is_of_sessions(op) == is_for_sessions) {
        let result = etcd.perform(&op);
        shared.answer(asker, MetadataCompletion { token: asker.token, result });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    use ob_core::{Refused, SessionId, Token};
    use ob_plant::not_tested;
    use ob_volume::metadata::{
        Change, Expect, Key, KeyValue, MemoryStore, MetadataStore, Transaction, Value,
    };

    use super::*;

    fn get() -> MetadataOp {
        MetadataOp::Get { key: Key::new("/a").unwrap() }
    }

    fn put() -> MetadataOp {
        commit("/a", Expect::Absent, Some(7), None)
    }

    fn commit(key: &str, expect: Expect, byte: Option<u8>, session: Option<SessionId>) -> MetadataOp {
        let key = Key::new(key).unwrap();
        let change = match byte {
            Some(byte) => Change::Put { key: key.clone(), value: Value::new(&[byte; 9]).unwrap(), session },
            None => Change::Delete { key: key.clone() },
        };
        MetadataOp::Commit(Transaction { compare: vec![(key, expect)], change: vec![change] })
    }

    /// A server that gives each connection one of these answers, once it has the whole request, and closes it.
    fn gateway(answers: Vec<Vec<u8>>) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut seen, mut byte) = (Vec::new(), [0]);
                while !is_whole(&seen) && stream.read(&mut byte).unwrap() > 0 {
                    seen.push(byte[0]);
                }
                stream.write_all(&answer).unwrap();
            }
        };
        (address, std::thread::spawn(serve))
    }

    fn is_whole(request: &[u8]) -> bool {
        let text = String::from_utf8_lossy(request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        body.len() >= len.parse().unwrap()
    }

    fn answer(status: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    #[test]
    fn the_next_endpoint_is_asked_where_one_takes_nothing_and_never_where_one_took_something() {
        // Nobody listens at the first: its port was just let go.
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let good = answer("200 OK", "{\"header\":{\"revision\":\"4\"},\"succeeded\":true}");
        let cut = good[..good.len() - 3].to_vec();
        let redirect =
            b"HTTP/1.1 307 There\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".to_vec();
        let timeout = answer("503 No", "{\"error\":\"etcdserver: request timed out\",\"code\":14}");
        let (address, server) = gateway(vec![good, cut, Vec::new(), redirect, timeout]);
        let etcd = Etcd::new(vec![nobody, address]);
        assert!(matches!(etcd.perform(&put()), Ok(MetadataAnswer::Committed(_))));
        for _ in 0..4 {
            // Only one of them has taken it: nobody else is asked, and nobody knows.
            etcd.preferred.store(1, Ordering::Relaxed);
            assert_eq!(etcd.perform(&put()), Err(MetadataError::Unknown));
        }
        server.join().unwrap();
        assert_eq!(etcd.perform(&put()), Err(MetadataError::Unreachable), "surely not done: nobody listens");
        assert_eq!(etcd.perform(&get()), Err(MetadataError::Unreachable));
    }

    #[test]
    fn the_next_request_goes_past_an_endpoint_that_cannot_answer_it() {
        let gone = answer("503 Service Unavailable", "<html>no backend</html>");
        let (proxy, proxys) = gateway(vec![gone]);
        let (member, members) = gateway(vec![answer("200 OK", "{\"header\":{\"revision\":\"4\"}}")]);
        let etcd = Etcd::new(vec![proxy, member]);
        assert_eq!(etcd.perform(&get()), Err(MetadataError::Unreachable));
        assert_eq!(etcd.perform(&get()), Ok(MetadataAnswer::Value(None)));
        proxys.join().unwrap();
        members.join().unwrap();
    }

    /// An etcd of the system's, in a directory of its own.
    struct Server {
        child: Child,
        address: SocketAddr,
        _directory: tempfile::TempDir,
    }

    impl Server {
        fn start() -> Option<Self> {
            let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let (address, peer, directory) = (free(), free(), tempfile::tempdir().unwrap());
            let (client, peer) = (format!("http://{address}"), format!("http://{peer}"));
            let child = Command::new("etcd")
                .args(["--name", "one", "--data-dir"])
                .arg(directory.path())
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("one={peer}")])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let server = Self { child: child.ok()?, address, _directory: directory };
            let etcd = Etcd::new(vec![address]);
            for _ in 0..600 {
                if etcd.perform(&get()).is_ok() {
                    return Some(server);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            panic!("etcd was started, and does not answer");
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn ask(store: &mut MemoryStore, op: MetadataOp) -> Result<MetadataAnswer, MetadataError> {
        store.submit(Token(1), op).unwrap_or_else(|Refused { .. }| panic!("it is full"));
        store.poll().unwrap().result
    }

    fn entries(result: Result<MetadataAnswer, MetadataError>) -> (Vec<KeyValue>, bool) {
        match result {
            Ok(MetadataAnswer::Values { entries, has_more }) => (entries, has_more),
            other => panic!("{other:?}"),
        }
    }

    const KEYS: [&str; 6] = ["/a", "/a/1", "/a/2", "/a/20", "/b", "/b/1"];

    /// A store in memory and etcd are told the same; each has revisions of its own.
    fn both_say_the_same(etcd: &Etcd, memory: &mut MemoryStore, seed: u64) {
        let mut state = seed;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 8) % below
        };
        let list =
            |prefix: &str| MetadataOp::List { prefix: Key::new(prefix).unwrap(), after: None, most: 1024 };
        for step in 0..400 {
            let key = KEYS[draw(6) as usize];
            let is_right = draw(4) > 0;
            let expect = |entries: &[KeyValue]| {
                let found = entries.iter().find(|entry| entry.key.as_str() == key);
                match found.filter(|_| is_right) {
                    Some(found) => Expect::At(found.revision),
                    None => Expect::Absent,
                }
            };
            let byte = (draw(4) > 0).then(|| draw(256) as u8);
            let expects =
                (expect(&entries(etcd.perform(&list("/"))).0), expect(&entries(ask(memory, list("/"))).0));
            let said = etcd.perform(&commit(key, expects.0, byte, None));
            let meant = ask(memory, commit(key, expects.1, byte, None));
            match (&said, &meant) {
                (Ok(MetadataAnswer::Committed(_)), Ok(MetadataAnswer::Committed(_))) => {}
                _ => assert_eq!(said, meant, "step {step} of seed {seed}"),
            }
            let prefix = KEYS[draw(6) as usize];
            let shown = |result| {
                let (entries, has_more) = entries(result);
                let of = |entry: &KeyValue| (entry.key.clone(), entry.value.clone());
                (entries.iter().map(of).collect::<Vec<_>>(), has_more)
            };
            assert_eq!(
                shown(etcd.perform(&list(prefix))),
                shown(ask(memory, list(prefix))),
                "step {step} of seed {seed}"
            );
        }
    }

    #[test]
    fn a_real_etcd_does_as_the_store_in_memory_and_ends_sessions() {
        let Some(server) = Server::start() else {
            return not_tested("etcd is not installed: `cargo xtask etcd` installs it");
        };
        let etcd = Etcd::new(vec![server.address]);
        both_say_the_same(&etcd, &mut MemoryStore::new(), 0x9e37_79b9_7f4a_7c15);
        // Its history goes, once.
        let Ok(MetadataAnswer::Committed(now)) = etcd.perform(&commit("/now", Expect::Absent, Some(1), None))
        else {
            panic!("it is not written")
        };
        let forget = MetadataOp::Forget { before: now };
        assert_eq!(etcd.perform(&forget), Ok(MetadataAnswer::Forgotten));
        assert_eq!(etcd.perform(&forget), Err(MetadataError::Unreachable), "that is forgotten already");
        let grant = MetadataOp::Grant { ttl: Duration::from_secs(2) };
        let mut sessions = Vec::new();
        for key in ["/s/1", "/s/2"] {
            let Ok(MetadataAnswer::Session(session)) = etcd.perform(&grant) else { panic!("no session") };
            let put = commit(key, Expect::Absent, Some(1), Some(session));
            assert!(matches!(etcd.perform(&put), Ok(MetadataAnswer::Committed(_))));
            assert_eq!(etcd.perform(&MetadataOp::Renew { session }), Ok(MetadataAnswer::Renewed));
            sessions.push(session);
        }
        let (revoked, left) = (sessions[0], sessions[1]);
        assert_eq!(etcd.perform(&MetadataOp::Revoke { session: revoked }), Ok(MetadataAnswer::Revoked));
        assert_eq!(etcd.perform(&MetadataOp::Revoke { session: revoked }), Err(MetadataError::NoSession));
        assert_eq!(etcd.perform(&MetadataOp::Renew { session: revoked }), Err(MetadataError::NoSession));
        let late = commit("/s/3", Expect::Absent, Some(1), Some(revoked));
        assert_eq!(etcd.perform(&late), Err(MetadataError::NoSession));
        // Nobody renews the other one.
        let key = MetadataOp::Get { key: Key::new("/s/2").unwrap() };
        while etcd.perform(&key) != Ok(MetadataAnswer::Value(None)) {
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(etcd.perform(&MetadataOp::Renew { session: left }), Err(MetadataError::NoSession));
        // It stops, and is stopped: nobody is asked twice, and no answer is made up.
        drop(server);
        assert_eq!(etcd.perform(&get()), Err(MetadataError::Unreachable));
    }
}
