//! Asking a discovery service what there is.

use ob_wire_nvme::log::{
    DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, DiscoveryEntry, DiscoveryEntryLayout, DiscoveryHeader,
    GetLogPage, LogPage,
};
use ob_wire_nvme::{CommandId, NamespaceId};
use zerocopy::FromBytes;

use super::connection::Data;
use super::error::Error;
use super::handle::Initiator;
use super::options::Options;
use super::session::{Queue, Request};

/// Records that a service is believed to have.
const RECORDS_MAX: u64 = 4096;
/// Records that are read at once: controllers without a limit of their own take this much.
const RECORDS_AT_ONCE: u64 = 4;
/// How often a log that changes under our hands is read.
const READS_MAX: usize = 10;

/// The places that can be connected to, by TCP. `options` say where the service is and who asks; the subsystem
/// in them does not matter.
pub async fn discover(options: &Options) -> Result<Vec<DiscoveryEntry>, Error> {
    let initiator = Initiator::connect(options.for_discovery()).await?;
    let entries = read_entries(&initiator).await;
    initiator.disconnect().await;
    entries
}

async fn read_entries(initiator: &Initiator) -> Result<Vec<DiscoveryEntry>, Error> {
    for _ in 0..READS_MAX {
        let header = read_header(initiator).await?;
        if header.record_format.get() != 0 {
            return Err(Error::Discovery("its records have an unknown format"));
        }
        let records = header.records.get();
        if records > RECORDS_MAX {
            return Err(Error::Discovery("it has more records than anything sensible"));
        }
        let mut entries = Vec::new();
        let mut at = 0;
        while at < records {
            let count = RECORDS_AT_ONCE.min(records - at);
            let offset = DISCOVERY_HEADER_LEN as u64 + at * DISCOVERY_ENTRY_LEN as u64;
            let data = read_log(initiator, offset, count * DISCOVERY_ENTRY_LEN as u64).await?;
            let layouts = data.chunks_exact(DISCOVERY_ENTRY_LEN);
            let layouts = layouts.filter_map(|bytes| DiscoveryEntryLayout::ref_from_bytes(bytes).ok());
            // What is not by TCP is of no use here, and what cannot be read neither.
            entries.extend(layouts.filter_map(|layout| DiscoveryEntry::parse(layout).ok()));
            at += count;
        }
        // The generation counts changes: records that were read around one may not belong together.
        if read_header(initiator).await?.generation == header.generation {
            return Ok(entries);
        }
    }
    Err(Error::Discovery("it changed each time it was read"))
}

async fn read_header(initiator: &Initiator) -> Result<DiscoveryHeader, Error> {
    let data = read_log(initiator, 0, DISCOVERY_HEADER_LEN as u64).await?;
    DiscoveryHeader::read_from_bytes(&data).map_err(|_| Error::Discovery("its header has the wrong length"))
}

async fn read_log(initiator: &Initiator, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
    let entry = GetLogPage {
        page: LogPage::Discovery.code(),
        specific: 0,
        retain_event: false,
        specific_id: 0,
        offset,
        len,
        command_set: 0,
        namespace: NamespaceId::NONE,
    }
    .encode(CommandId(0));
    let request = Request {
        queue: Queue::Admin,
        entry,
        data: Data::ToHost(len as u32),
        is_idempotent: true,
        may_be_short: false,
        expects: None,
    };
    Ok(initiator.command(request).await?.data)
}
