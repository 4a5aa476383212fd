//! An etcd of the system's, in a directory of its own, which is stopped and started again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::{DEADLINE, Program};

pub(crate) struct Etcd {
    /// None while it is stopped. It is killed before its directory is removed.
    program: Option<Program>,
    pub(crate) address: SocketAddr,
    peer: SocketAddr,
    directory: tempfile::TempDir,
}

impl Etcd {
    /// Starts one; nothing, where there is no etcd.
    pub(crate) fn start() -> Option<Self> {
        let version = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        version.is_ok_and(|status| status.success()).then(|| {
            let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let (address, peer, directory) = (free(), free(), tempfile::tempdir().unwrap());
            let mut etcd = Self { program: None, address, peer, directory };
            etcd.begin();
            etcd
        })
    }

    /// Starts it with what it has, where it was, and waits until it answers.
    pub(crate) fn begin(&mut self) {
        let (client, peer) = (format!("http://{}", self.address), format!("http://{}", self.peer));
        let mut command = Command::new("etcd");
        command.args(["--name", "one", "--data-dir"]).arg(self.directory.path());
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("one={peer}")]).stdin(Stdio::null());
        self.program = Some(Program::start(command));
        let deadline = Instant::now() + DEADLINE;
        while self.ask("GET", "/health", "").is_none_or(|answer| answer["health"] != "true") {
            assert!(Instant::now() < deadline, "etcd was started, and does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn stop(&mut self) {
        let mut program = self.program.take().unwrap();
        program.signal(Signal::TERM);
        program.wait();
    }

    /// How many keys begin so.
    pub(crate) fn count(&self, prefix: &str) -> u64 {
        // What is behind all that begin so: the last letter is one further.
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let (key, end) = (base64(prefix.as_bytes()), base64(&end));
        let body = format!("{{\"key\":\"{key}\",\"range_end\":\"{end}\",\"count_only\":true}}");
        let answer = self.ask("POST", "/v3/kv/range", &body).unwrap();
        answer["count"].as_str().map_or(0, |count| count.parse().unwrap())
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let head = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
