//! A stretch of network that breaks every so many bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::worker::Dice;

/// Forwards connections to a card, and cuts each after a random number of bytes.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    cuts: Arc<AtomicU64>,
}

impl Proxy {
    /// Most cuts come within so many bytes.
    pub(crate) fn start(card: SocketAddr, seed: u64, within: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&cuts);
        // Ends with the process that runs the test.
        std::thread::spawn(move || {
            let mut dice = Dice::new(seed);
            for host in listener.incoming().map_while(Result::ok) {
                let Ok(card) = TcpStream::connect(card) else { continue };
                let budget = Arc::new(AtomicI64::new(dice.below(within) as i64 + 4096));
                for (from, to) in [(&host, &card), (&card, &host)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (budget, cuts) = (Arc::clone(&budget), Arc::clone(&counted));
                    std::thread::spawn(move || pump(from, to, &budget, &cuts));
                }
            }
        });
        Self { address, cuts }
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Acquire)
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, budget: &AtomicI64, cuts: &AtomicU64) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(len) = from.read(&mut buffer) {
        let left = budget.fetch_sub(len as i64, Ordering::AcqRel);
        let cut = left < len as i64;
        let forwarded = if cut { left.clamp(0, len as i64) as usize } else { len };
        if to.write_all(&buffer[..forwarded]).is_err() || len == 0 || cut {
            cuts.fetch_add(u64::from(cut), Ordering::AcqRel);
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
