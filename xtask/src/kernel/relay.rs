//! A relay between the guest's host and the guest's own target, for the self-test: it can be cut, and it can record.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

// Looked at this often whether to stop accepting.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The bytes of one connection.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What the guest called this part of the traffic.
    pub label: String,
    /// From the host to the target.
    pub from_host: Vec<u8>,
    /// From the target to the host.
    pub from_target: Vec<u8>,
}

#[derive(Default)]
struct Shared {
    label: Option<String>,
    recordings: Vec<Recording>,
    sockets: Vec<TcpStream>,
}

/// The relay.
pub struct Relay {
    port: u16,
    to_port: u16,
    shared: Arc<Mutex<Shared>>,
    listening: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Relay {
    /// A relay from a free port of this machine to `to_port`.
    ///
    /// # Errors
    /// When there is no port to listen on.
    pub fn start(to_port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let mut relay = Self { port, to_port, shared: Arc::default(), listening: None };
        relay.listen(listener)?;
        Ok(relay)
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends every connection and refuses new ones, as if the target had died.
    pub fn cut(&mut self) {
        if let Some((stop, thread)) = self.listening.take() {
            stop.store(true, Ordering::Release);
            // A thread that panicked has stopped too.
            let _ = thread.join();
        }
        for socket in lock(&self.shared).sockets.drain(..) {
            // It may have ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Lets connections through again.
    ///
    /// # Errors
    /// When the port has been taken meanwhile.
    pub fn mend(&mut self) -> Result<()> {
        if self.listening.is_none() {
            let listener =
                TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).context("the relay's port is taken")?;
            self.listen(listener)?;
        }
        Ok(())
    }

    /// From now on new connections are recorded under this label, or not at all.
    pub fn record(&mut self, label: Option<&str>) {
        lock(&self.shared).label = label.map(str::to_owned);
    }

    /// What was recorded, in the order in which the connections were made.
    #[must_use]
    pub fn recordings(&self) -> Vec<Recording> {
        lock(&self.shared).recordings.clone()
    }

    fn listen(&mut self, listener: TcpListener) -> Result<()> {
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, to_port, stopped) = (Arc::clone(&self.shared), self.to_port, Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((host, _)) => {
                        // A connection that fails shows at the host, which is what the self-test looks at.
                        let _ = join(&shared, host, to_port);
                    }
                    Err(_) => thread::sleep(ACCEPT_PAUSE),
                }
            }
            // Closing it is not enough: a program that is started at this moment has it too until it has begun, and hosts would connect to that.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        });
        self.listening = Some((stop, thread));
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    // A thread that panicked left nothing half done: each change is one push.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join(shared: &Arc<Mutex<Shared>>, host: TcpStream, to_port: u16) -> io::Result<()> {
    host.set_nonblocking(false)?;
    let target = TcpStream::connect((Ipv4Addr::LOCALHOST, to_port))?;
    for socket in [&host, &target] {
        socket.set_nodelay(true)?;
    }
    let index = {
        let mut shared = lock(shared);
        shared.sockets.extend([host.try_clone()?, target.try_clone()?]);
        let label = shared.label.clone();
        label.map(|label| {
            shared.recordings.push(Recording { label, ..Recording::default() });
            shared.recordings.len() - 1
        })
    };
    copy(host.try_clone()?, target.try_clone()?, Arc::clone(shared), index, |recording| {
        &mut recording.from_host
    });
    copy(target, host, Arc::clone(shared), index, |recording| &mut recording.from_target);
    Ok(())
}

fn copy(
    mut from: TcpStream,
    mut to: TcpStream,
    shared: Arc<Mutex<Shared>>,
    index: Option<usize>,
    side: fn(&mut Recording) -> &mut Vec<u8>,
) {
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count) = from.read(&mut buffer)
            && count > 0
        {
            if let Some(index) = index
                && let Some(recording) = lock(&shared).recordings.get_mut(index)
            {
                side(recording).extend_from_slice(&buffer[..count]);
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // One side's end is the other's.
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_refuses_though_somebody_else_has_the_listener_too() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let somebody_else = listener.try_clone().unwrap();
        let mut relay = Relay { port, to_port: 1, shared: Arc::default(), listening: None };
        relay.listen(listener).unwrap();
        relay.cut();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
        relay.mend().unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        drop(somebody_else);
    }

    #[test]
    fn it_carries_records_and_can_be_cut_and_mended() {
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut relay = Relay::start(target.local_addr().unwrap().port()).unwrap();
        relay.record(Some("first"));
        let address = (Ipv4Addr::LOCALHOST, relay.port());
        let mut host = TcpStream::connect(address).unwrap();
        let (mut accepted, _) = target.accept().unwrap();
        host.write_all(b"question").unwrap();
        let mut question = [0; 8];
        accepted.read_exact(&mut question).unwrap();
        accepted.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        host.read_exact(&mut answer).unwrap();

        relay.cut();
        assert!(matches!(host.read(&mut answer), Ok(0) | Err(_)), "a cut ends what was there");
        assert!(TcpStream::connect(address).is_err(), "and refuses what comes");
        let recordings = relay.recordings();
        assert_eq!(recordings.len(), 1);
        assert_eq!(recordings[0].label, "first");
        assert_eq!(
            (&recordings[0].from_host[..], &recordings[0].from_target[..]),
            (&b"question"[..], &b"answer"[..])
        );

        relay.mend().unwrap();
        let _host = TcpStream::connect(address).unwrap();
        target.accept().unwrap();
    }
}
