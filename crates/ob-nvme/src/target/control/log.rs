//! Log pages (Base §5.16): made when they are read.

use ob_wire_nvme::command::{AdminOpcode, IoOpcode};
use ob_wire_nvme::identify::NamespaceList;
use ob_wire_nvme::log::{
    CommandEffects, ErrorEntry, FirmwareSlots, GetLogPage, LogPage, SmartLog, SupportedLogs, effect,
};
use ob_wire_nvme::{NamespaceId, Status};
use zerocopy::IntoBytes;

use super::async_event::Event;
use super::controller::{Controller, ERROR_ENTRIES, Role};
use super::subsystem::Subsystem;
use super::{ANSWER_SHIFT, Control, Request, Verdict, ana, discovery, reserve};

const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();

/// The logs of an I/O controller.
const IO_LOGS: [LogPage; 8] = [
    LogPage::SupportedLogs,
    LogPage::Error,
    LogPage::Smart,
    LogPage::Firmware,
    LogPage::ChangedNamespaces,
    LogPage::Effects,
    LogPage::Ana,
    LogPage::ReservationNotification,
];

/// The logs of a discovery controller.
const DISCOVERY_LOGS: [LogPage; 4] =
    [LogPage::SupportedLogs, LogPage::Error, LogPage::Smart, LogPage::Discovery];

/// Get Log Page.
pub(super) fn command(control: &mut Control, request: &Request<'_>) -> Result<Verdict, Status> {
    let wanted = GetLogPage::parse(request.command)?;
    let page = wanted.log_page()?;
    if wanted.len > 4096_u64 << ANSWER_SHIFT {
        return Err(INVALID);
    }
    if wanted.len > u64::from(request.transfer_len) {
        return Err(Status::INVALID_SGL_LENGTH.with_do_not_retry());
    }
    let controller = control.controller(request.queue.controller).ok_or(INVALID)?;
    let log = match controller.role {
        Role::Discovery => discovery_controller_log(control, controller, page)?,
        Role::Io(key) => {
            let subsystem = control.subsystem(key).ok_or(INVALID)?;
            io_log(controller, subsystem, &control.foreign_opcodes, page, &wanted)?
        }
    };
    let mut bytes = log.get(wanted.window(log.len())?).unwrap_or_default().to_vec();
    // What is asked for beyond the log's end is zeroes; the length was compared with a small limit above.
    bytes.resize(wanted.len as usize, 0);
    if !wanted.retain_event {
        acknowledge(control, request, page);
    }
    Ok(Verdict::Data { bytes, result: 0 })
}

fn discovery_controller_log(
    control: &Control,
    controller: &Controller,
    page: LogPage,
) -> Result<Vec<u8>, Status> {
    match page {
        LogPage::SupportedLogs => Ok(SupportedLogs::new(&DISCOVERY_LOGS).as_bytes().to_vec()),
        LogPage::Error => Ok(errors(controller)),
        LogPage::Smart => Ok(SmartLog::healthy().as_bytes().to_vec()),
        LogPage::Discovery => Ok(discovery::log(control, controller)),
        _ => Err(Status::INVALID_LOG_PAGE.with_do_not_retry()),
    }
}

fn io_log(
    controller: &Controller,
    subsystem: &Subsystem,
    foreign: &[u8],
    page: LogPage,
    wanted: &GetLogPage,
) -> Result<Vec<u8>, Status> {
    match page {
        LogPage::SupportedLogs => Ok(SupportedLogs::new(&IO_LOGS).as_bytes().to_vec()),
        LogPage::Error => Ok(errors(controller)),
        // LPA says that there is one for the controller, not one for each namespace.
        LogPage::Smart if ![NamespaceId::NONE, NamespaceId::ALL].contains(&wanted.namespace) => Err(INVALID),
        LogPage::Smart => Ok(health(subsystem).as_bytes().to_vec()),
        LogPage::Firmware => Ok(FirmwareSlots::new(&subsystem.spec.firmware).as_bytes().to_vec()),
        LogPage::ChangedNamespaces => {
            let changed = controller.changed_namespaces.iter().map(|nsid| NamespaceId(*nsid));
            Ok(NamespaceList::changed(changed).as_bytes().to_vec())
        }
        LogPage::Effects if wanted.command_set == 0 => Ok(effects(foreign).as_bytes().to_vec()),
        LogPage::Effects => Err(INVALID),
        LogPage::Ana => Ok(ana::log(subsystem, controller.path.port, wanted.specific & 1 != 0)),
        LogPage::ReservationNotification => Ok(reserve::notification(controller)),
        _ => Err(Status::INVALID_LOG_PAGE.with_do_not_retry()),
    }
}

/// The host has read a log and asks that its event be forgotten.
fn acknowledge(control: &mut Control, request: &Request<'_>, page: LogPage) {
    let key = request.queue.controller;
    let Some(controller) = control.controller_mut(key) else { return };
    match page {
        LogPage::ChangedNamespaces => {
            controller.changed_namespaces.clear();
            controller.async_events.clear(Event::NamespaceChanged);
        }
        LogPage::Ana => controller.async_events.clear(Event::AnaChanged),
        LogPage::Discovery => controller.async_events.clear(Event::DiscoveryChanged),
        LogPage::ReservationNotification => {
            controller.reservation_notices.pop_front();
            controller.async_events.clear(Event::ReservationNotice);
            if !controller.reservation_notices.is_empty() {
                controller.raise(Event::ReservationNotice);
            }
        }
        _ => {}
    }
    control.deliver(key);
}

fn errors(controller: &Controller) -> Vec<u8> {
    let mut log = Vec::with_capacity(ERROR_ENTRIES * size_of::<ErrorEntry>());
    for record in &controller.errors.entries {
        let nsid = NamespaceId(record.nsid);
        let mut entry = ErrorEntry::new(record.count, record.queue, record.command, nsid, record.status);
        entry.block = record.lba.into();
        log.extend_from_slice(entry.as_bytes());
    }
    log.resize(ERROR_ENTRIES * size_of::<ErrorEntry>(), 0);
    log
}

fn health(subsystem: &Subsystem) -> SmartLog {
    let health = &subsystem.health;
    SmartLog {
        units_read: SmartLog::units(health.bytes_read).into(),
        units_written: SmartLog::units(health.bytes_written).into(),
        reads: health.reads.into(),
        writes: health.writes.into(),
        media_errors: health.media_errors.into(),
        error_entries: health.errors.into(),
        ..SmartLog::healthy()
    }
}

fn effects(foreign: &[u8]) -> CommandEffects {
    let admin = [
        AdminOpcode::GetLogPage,
        AdminOpcode::Identify,
        AdminOpcode::Abort,
        AdminOpcode::SetFeatures,
        AdminOpcode::GetFeatures,
        AdminOpcode::AsyncEventRequest,
        AdminOpcode::KeepAlive,
    ];
    let io = [
        IoOpcode::Flush,
        IoOpcode::Read,
        IoOpcode::Compare,
        IoOpcode::Verify,
        IoOpcode::ReservationRegister,
        IoOpcode::ReservationReport,
        IoOpcode::ReservationAcquire,
        IoOpcode::ReservationRelease,
    ];
    let writes = [IoOpcode::Write, IoOpcode::WriteZeroes, IoOpcode::DatasetManagement];
    let mut effects = CommandEffects::default();
    for opcode in admin {
        effects = effects.with_admin(opcode.code(), effect::SUPPORTED);
    }
    for opcode in io {
        effects = effects.with_io(opcode.code(), effect::SUPPORTED);
    }
    for opcode in writes {
        effects = effects.with_io(opcode.code(), effect::SUPPORTED | effect::DATA_CHANGES);
    }
    // A service reads namespaces for these, and changes nothing in them.
    for opcode in foreign {
        effects = effects.with_io(*opcode, effect::SUPPORTED);
    }
    effects
}
