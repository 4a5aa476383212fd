//! `outboard nvme read` and `outboard nvme write`: bytes between a namespace and this machine.
//!
//! ```text
//!   read    namespace ─▶ parts, several under way ─▶ in order ─▶ a file, standard output
//!   write   a file, standard input ─▶ parts, several under way ─▶ namespace ─▶ flush?
//! ```
//!
//! The initiator splits each part at the largest transfer that the controller takes.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ob_nvme::initiator::{Error, InOrder, Initiator, Namespace, block_on};
use ob_wire_nvme::NamespaceId;

use super::command::{ReadOptions, TransferOptions, WriteOptions};
use super::connect::{Losses, Target};
use super::error::InitiatorError;
use super::local::{Input, Output};
use crate::files::transfer_bar;
use crate::terminal::{bytes, duration, say};

/// Bytes of a part. A multiple of every block.
const PART: u64 = 1 << 20;
/// Parts under way at once.
const PARTS: usize = 4;

/// A namespace that bytes are moved to or from.
struct Place {
    initiator: Initiator,
    namespace: Namespace,
    /// Where they begin.
    offset: u64,
}

impl Place {
    async fn open(options: &TransferOptions, losses: Losses) -> Result<Self, InitiatorError> {
        let target = Target::named(&options.subsystem)?;
        let initiator = target.connect(options.queues, losses).await?;
        let found = initiator.namespace(NamespaceId(options.nsid)).await;
        let namespace = found.map_err(|error| match error {
            Error::NoSuchNamespace(nsid) => target.no_namespace(nsid),
            other => InitiatorError::failed(format!("use namespace {}", options.nsid))(other),
        })?;
        let place = Self { initiator, namespace, offset: options.offset.0 };
        place.check_blocks("an offset", place.offset, |near| format!("the nearest is {near}"))?;
        Ok(place)
    }

    fn check_blocks(
        &self,
        what: &'static str,
        count: u64,
        hint: impl FnOnce(&str) -> String,
    ) -> Result<(), InitiatorError> {
        let block_len = self.namespace.block_len();
        let block = u64::from(block_len);
        if count.is_multiple_of(block) {
            return Ok(());
        }
        let below = count - count % block;
        let above = below.saturating_add(block);
        let hint = hint(&if below == 0 { format!("{above}B") } else { format!("{below}B or {above}B") });
        Err(InitiatorError::NotWholeBlocks { what, count, block_len, nsid: self.namespace.id(), hint })
    }

    fn check_end(&self, len: u64) -> Result<(), InitiatorError> {
        let size = self.namespace.len();
        if self.offset.checked_add(len).is_some_and(|end| end <= size) {
            return Ok(());
        }
        Err(InitiatorError::PastEnd { offset: self.offset, len, nsid: self.namespace.id(), size })
    }

    fn block_at(&self, position: u64) -> u64 {
        (self.offset + position) / u64::from(self.namespace.block_len())
    }
}

/// Tells a person, or a script, what was done.
fn report(
    options: &TransferOptions,
    verb: &str,
    count: u64,
    time: Duration,
    durable: Option<bool>,
) -> Result<(), InitiatorError> {
    if options.json {
        let mut told = serde_json::json!({
            "nsid": options.nsid, "offset": options.offset.0, "bytes": count, "seconds": time.as_secs_f64(),
        });
        if let (Some(durable), Some(fields)) = (durable, told.as_object_mut()) {
            fields.insert("durable".to_owned(), durable.into());
        }
        return Ok(say(&told.to_string())?);
    }
    let durable = match durable {
        None => "",
        Some(true) => ", durable",
        Some(false) => ", not flushed",
    };
    Ok(say(&format!(
        "{verb} {} at {} of namespace {} in {}{durable}",
        bytes(count),
        options.offset,
        options.nsid,
        duration(time)
    ))?)
}

fn nothing(what: &str) -> InitiatorError {
    InitiatorError::Request {
        problem: format!("there is nothing to {what}"),
        hint: "give at least one block",
    }
}

pub(super) fn read(options: &ReadOptions) -> Result<(), InitiatorError> {
    if options.transfer.json && options.out.as_os_str() == "-" {
        return Err(InitiatorError::Request {
            problem: "blocks and JSON cannot both go to standard output".to_owned(),
            hint: "name a file with --out FILE",
        });
    }
    let len = options.length.0;
    if len == 0 {
        return Err(nothing("read"));
    }
    let mut output = Output::open(&options.out, options.force, io::stdout().is_terminal())?;
    let time = block_on(async {
        let place = Place::open(&options.transfer, Losses::Mended).await?;
        place.check_blocks("a length", len, |near| format!("the nearest is {near}"))?;
        place.check_end(len)?;
        let started = Instant::now();
        fetch(&place, len, &mut output).await?;
        place.initiator.disconnect().await;
        Ok::<_, InitiatorError>(started.elapsed())
    })?;
    output.finish()?;
    if output.is_standard() { Ok(()) } else { report(&options.transfer, "read", len, time, None) }
}

async fn fetch(place: &Place, len: u64, output: &mut Output) -> Result<(), InitiatorError> {
    let nsid = place.namespace.id();
    let bar = transfer_bar(Some(len), &format!("namespace {nsid}"));
    let mut running = InOrder::default();
    let mut asked = 0;
    loop {
        while running.len() < PARTS && asked < len {
            let count = PART.min(len - asked);
            let blocks = count / u64::from(place.namespace.block_len());
            running.begin(place.namespace.read(place.block_at(asked), blocks));
            asked += count;
        }
        let Some(part) = running.next().await else { break };
        let part = part.map_err(InitiatorError::failed(format!("read namespace {nsid}")))?;
        output.write(&part)?;
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    Ok(())
}

pub(super) fn write(options: &WriteOptions) -> Result<(), InitiatorError> {
    let mut input = Input::open(&options.input, io::stdin().is_terminal())?;
    if input.len == Some(0) {
        return Err(nothing("write"));
    }
    // A flush speaks for what this life of the target answered, and for no other.
    let losses = if options.flush && !options.fua { Losses::Final } else { Losses::Mended };
    let (count, time) = block_on(async {
        let place = Place::open(&options.transfer, losses).await?;
        if let Some(len) = input.len {
            place.check_blocks("an input", len, padding_hint)?;
            place.check_end(len)?;
        }
        let started = Instant::now();
        let count = store(&place, &mut input, options).await?;
        if options.flush {
            let action = format!("flush namespace {}", place.namespace.id());
            place.namespace.flush().await.map_err(|error| {
                let note = format!("{count} bytes were written, and may not survive a loss of power");
                InitiatorError::failed(action)(error).noted(note)
            })?;
        }
        place.initiator.disconnect().await;
        Ok::<_, InitiatorError>((count, started.elapsed()))
    })?;
    report(&options.transfer, "wrote", count, time, Some(options.fua || options.flush))
}

fn padding_hint(near: &str) -> String {
    format!("blocks are written whole: cut or pad it to {near}, for instance with `truncate -s`")
}

/// Writes everything; how many bytes that was. Whatever ends it, nothing is under way afterwards.
async fn store(place: &Place, input: &mut Input, options: &WriteOptions) -> Result<u64, InitiatorError> {
    let nsid = place.namespace.id();
    let bar = transfer_bar(input.len, &format!("namespace {nsid}"));
    let mut running = InOrder::default();
    let (mut sent, mut done) = (0, 0);
    let (mut is_over, mut is_whole) = (false, true);
    let mut failure = None;
    loop {
        while running.len() < PARTS && !is_over {
            match next_part(place, input, options, sent) {
                Ok(part) if part.is_empty() => is_over = true,
                Ok(part) => {
                    let start = place.block_at(sent);
                    sent += part.len() as u64;
                    running.begin(write_part(&place.namespace, start, part, options.fua));
                }
                Err(error) => {
                    failure = Some(error);
                    is_over = true;
                }
            }
        }
        match running.next().await {
            None => break,
            Some(Ok(count)) if is_whole => {
                done += count;
                bar.inc(count);
            }
            Some(Err(source)) if is_whole => {
                failure = Some(InitiatorError::failed(format!("write namespace {nsid}"))(source));
                (is_over, is_whole) = (true, false);
            }
            // Behind the first failure nothing counts.
            Some(_) => {}
        }
    }
    bar.finish_and_clear();
    let behind = if is_whole { "" } else { "; what follows may have been, in part" };
    match failure {
        Some(error) if sent > 0 => Err(error.noted(format!("the first {done} bytes were written{behind}"))),
        Some(error) => Err(error),
        None if done == 0 => Err(nothing("write")),
        None => Ok(done),
    }
}

async fn write_part(
    namespace: &Namespace,
    start: u64,
    part: Vec<u8>,
    is_durable: bool,
) -> Result<u64, Error> {
    let count = part.len() as u64;
    if is_durable {
        namespace.write_durably(start, part).await?;
    } else {
        namespace.write(start, part).await?;
    }
    Ok(count)
}

fn next_part(
    place: &Place,
    input: &mut Input,
    options: &WriteOptions,
    position: u64,
) -> Result<Vec<u8>, InitiatorError> {
    let part = input.next(PART as usize, &options.input)?;
    let end = position + part.len() as u64;
    // How long standard input is shows at its end.
    place.check_blocks("an input", end, padding_hint)?;
    place.check_end(end)?;
    Ok(part)
}
