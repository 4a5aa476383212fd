//! Page reads of a database, answered by the card (DDS §9.1): `cargo run -p ob-offload --example pages`.
//!
//! A page server's host replays a log into pages of a file. Clients ask for a page as of a position in that log (its LSN) or newer.
//! The card answers what lies in the file and is new enough; while the host has a page in its hands, to change it, the host answers.
//!
//! ```text
//!   host writes a page ─▶ cache:      page ─▶ LSN, place
//!   host reads a page ──▶ invalidate: page ─▶ nothing
//!   client: length u32, id u64, page u64, lsn u64 ─▶ predicate ─▶ function ─▶ read ─▶ check ─▶ id u64, the page
//! ```
//!
//! A page begins with its number, its LSN and the stamp of the last request that its host had received when it wrote it. Numbers
//! are little-endian. The four functions of the paper's Table 1 are all in [`Pages`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ob_core::{NodeId, Token};
use ob_files_card::WriteObserver;
use ob_memory::Slice;
use ob_offload::{
    Application, BlockRead, BlocksRead, Candidate, Candidates, Changes, Cut, Engine, EngineConfig, FileRead,
    Files, Hit, Item, Key, ReadBytes, Reason, Reply, ReplyOrder, ReplySink, Requests, Route, Stamp, Standing,
    State, Verdict, cut_by_length,
};
use ob_table::{Table, TableConfig};

const PAGE_LEN: usize = 4096;
const REQUEST_LEN: usize = 28;

/// The service.
struct Pages;

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

impl Application for Pages {
    type Cutter = ();

    const REPLIES: ReplyOrder = ReplyOrder::ById;

    fn cut(&self, (): &mut (), bytes: &[u8], _: Standing, _: &mut Vec<u8>) -> Cut {
        cut_by_length(bytes, REQUEST_LEN..=1 << 20)
    }

    // Whether the card answers, and how: some thirty lines.
    fn predicate(&self, message: &[u8], _: Standing, requests: &mut Requests) {
        let route = match Key::new(&number(message, 12).to_le_bytes()) {
            Ok(page) if message.len() == REQUEST_LEN => {
                requests.key(page);
                Route::Card
            }
            _ => Route::to_host(Reason::Command),
        };
        requests.push(0..message.len(), number(message, 4), route);
    }

    fn function(
        &self,
        request: &[u8],
        hits: &[Hit],
        _: u64,
        reads: &mut Vec<FileRead>,
        _: &mut Reply,
    ) -> Verdict {
        let item = hits.first().map_or(&[][..], |hit| hit.item.bytes());
        if number(item, 0) < number(request, 20) {
            return Verdict::Host(Reason::Absent);
        }
        let (offset, file) = (number(item, 8), number(item, 16) as u32);
        reads.push(FileRead { file, offset, len: PAGE_LEN as u32 });
        Verdict::Read
    }

    fn check(&self, request: &[u8], hits: &[Hit], read: &ReadBytes<'_>, reply: &mut Reply) -> bool {
        let page = read.get(0).unwrap_or_default();
        let lsn = hits.first().map_or(0, |hit| number(hit.item.bytes(), 0));
        reply.bytes(&number(request, 4).to_le_bytes());
        reply.read(0, 0..page.len());
        number(page, 0) == number(request, 12) && number(page, 8) == lsn
    }

    // What the card knows of pages: some twenty lines.
    fn cache(&self, _: &[u8; 16], file: u32, offset: u64, bytes: &[u8], candidates: &mut Candidates) {
        for (at, page) in bytes.chunks_exact(PAGE_LEN).enumerate() {
            let place = offset + (at * PAGE_LEN) as u64;
            let item = [number(page, 8), place, u64::from(file)].map(u64::to_le_bytes).concat();
            let key = Key::new(&number(page, 0).to_le_bytes());
            let stamp = Stamp::new(number(page, 16));
            if let (Ok(key), Ok(item), Ok(stamp)) = (key, Item::new(&item), stamp) {
                candidates.push(Candidate { key, item, stamp });
            }
        }
        candidates.ends_at(offset + bytes.len() as u64);
    }

    fn invalidate(&self, _: u32, offset: u64, len: u64, keys: &mut Vec<Key>) -> Changes {
        let (first, end) = (offset / PAGE_LEN as u64, (offset + len).div_ceil(PAGE_LEN as u64));
        keys.extend((first..end).filter_map(|page| Key::new(&page.to_le_bytes()).ok()));
        Changes::Keys
    }

    fn unavailable(&self, id: u64, _: bool, reply: &mut Vec<u8>) {
        reply.extend_from_slice(&id.to_le_bytes());
    }
}

/// A file in memory, and reads of it that are done.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<(Vec<u8>, VecDeque<BlocksRead>)>>);

impl Files for Memory {
    fn block_len(&self) -> u32 {
        PAGE_LEN as u32
    }

    fn read(&mut self, token: Token, mut read: BlockRead) -> Result<(), BlockRead> {
        let (bytes, done) = &mut *self.0.borrow_mut();
        let found = bytes.get(read.offset as usize..).unwrap_or_default();
        let len = found.len().min(read.into.len());
        read.into[..len].copy_from_slice(&found[..len]);
        done.push_back(BlocksRead { token, len: Ok(len as u32), version: None, buffer: Some(read.into) });
        Ok(())
    }

    fn poll(&mut self) -> Option<BlocksRead> {
        self.0.borrow_mut().1.pop_front()
    }
}

/// What a client gets.
#[derive(Default)]
struct Sent(Vec<u8>);

impl ReplySink for Sent {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn slice(&mut self, slice: Slice) {
        self.0.extend_from_slice(&slice);
    }
}

fn page(number: u64, lsn: u64, stamp: Stamp) -> Vec<u8> {
    let mut bytes = [number, lsn, stamp.number()].map(u64::to_le_bytes).concat();
    bytes.resize(PAGE_LEN, number as u8);
    bytes
}

/// A card with one file, in which the host has written page 1 as of LSN 5.
struct Card {
    engine: Engine<Pages>,
    host: Box<dyn WriteObserver>,
    memory: Memory,
}

const FILE: NodeId = NodeId(7);

impl Card {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let (_, writer) = Table::new(TableConfig::with_memory_max(1 << 20))?;
        let memory = Memory::default();
        let mut engine = Engine::new(Rc::new(Pages), writer, EngineConfig::default(), memory.block_len());
        let mut host: Box<dyn WriteObserver> = Box::new(engine.watcher());
        let last = Stamp::new(3)?;
        engine.begin(last, [0; 16], 0, false);
        engine.name_file(1, FILE);
        let page = page(1, 5, last);
        memory.0.borrow_mut().0 = [vec![0; PAGE_LEN], page.clone()].concat();
        // The director shows writes of the host, and says when the log is settled behind them.
        host.write_taken(FILE, PAGE_LEN as u64, &page);
        engine.settled(2 * PAGE_LEN as u64);
        engine.admit(last, usize::MAX);
        Ok(Self { engine, host, memory })
    }

    /// Asks for a page: what the card answers, or why the host has to.
    fn ask(&mut self, page: u64, lsn: u64) -> Result<Vec<u8>, Reason> {
        let id = 9u64;
        let message = [&28u32.to_le_bytes()[..], &[id, page, lsn].map(u64::to_le_bytes).concat()].concat();
        let mut requests = Requests::default();
        Pages.predicate(&message, Standing(1), &mut requests);
        let request = requests.get(0).ok_or(Reason::Command)?;
        let context = self.engine.start(1, request.id, &message, requests.keys(request), 0)?;
        self.engine.poll(&mut self.memory);
        let mut sent = Sent::default();
        match self.engine.state(context) {
            State::Ready => self.engine.take_reply(context, &mut sent),
            State::Host(reason) => return Err(reason),
            State::Reading => return Err(Reason::Busy),
        }
        Ok(sent.0)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut card = Card::new()?;
    println!("page 1 as of 4: {:?} bytes by the card", card.ask(1, 4).map(|reply| reply.len()));
    println!("page 1 as of 6: {:?}, so the host waits for its log", card.ask(1, 6));
    card.host.read_taken(FILE, PAGE_LEN as u64, PAGE_LEN as u64);
    println!("while the host changes it: {:?}", card.ask(1, 4));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_answers_what_is_new_enough_and_nobody_is_changing() {
        let mut card = Card::new().unwrap();
        let expected = [&9u64.to_le_bytes()[..], &page(1, 5, Stamp::new(3).unwrap())].concat();
        assert_eq!(card.ask(1, 4), Ok(expected.clone()));
        assert_eq!(card.ask(1, 5), Ok(expected.clone()));
        assert_eq!(card.ask(1, 6), Err(Reason::Absent));
        assert_eq!(card.ask(2, 0), Err(Reason::Absent));
        // The host reads another page, and then this one.
        card.host.read_taken(FILE, 0, PAGE_LEN as u64);
        assert_eq!(card.ask(1, 5), Ok(expected));
        card.host.read_taken(FILE, PAGE_LEN as u64, 1);
        assert_eq!(card.ask(1, 5), Err(Reason::Absent));
        // It has changed the page in memory, and writes it back behind a request that it got meanwhile.
        let stamp = Stamp::new(4).unwrap();
        let changed = page(1, 8, stamp);
        card.engine.given(stamp);
        card.memory.0.borrow_mut().0[PAGE_LEN..].copy_from_slice(&changed);
        card.host.write_taken(FILE, PAGE_LEN as u64, &changed);
        assert_eq!(card.ask(1, 5), Err(Reason::Absent), "not before it is settled");
        card.engine.settled(2 * PAGE_LEN as u64);
        card.engine.admit(stamp, usize::MAX);
        assert_eq!(card.ask(1, 8).unwrap()[8..], changed);
        // A page that is not what the table meant is the host's.
        card.memory.0.borrow_mut().0[PAGE_LEN..].copy_from_slice(&page(1, 9, stamp));
        assert_eq!(card.ask(1, 8), Err(Reason::Mismatch));
    }

    #[test]
    fn the_functions_are_as_short_as_the_paper_says() {
        let text = include_str!("pages.rs");
        let lines = |from: &str, to: &str| {
            let (_, rest) = text.split_once(from).unwrap();
            rest.split_once(to).unwrap().0.lines().filter(|line| !line.trim().is_empty()).count()
        };
        let how = lines("some thirty lines.", "    // What the card knows");
        let what = lines("some twenty lines.", "    fn unavailable");
        assert!(how <= 40 && what <= 20, "{how} and {what}");
    }
}
