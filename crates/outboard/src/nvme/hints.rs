//! What to do about what went wrong.

use std::io;

use ob_nvme::target::control::AdminError;
use ob_wire_link::files::FileError;

/// What to do where the target refuses what it is to serve.
pub(super) fn of_refusal(error: &AdminError) -> &'static str {
    match error {
        AdminError::BadNamespaceId { .. } => {
            "`outboard namespace list` shows those that are taken; without --nsid a free one is used"
        }
        AdminError::NamespacesFull => {
            "`outboard namespace rm` makes room, or put it into another [[nvme.subsystem]]"
        }
        AdminError::UnknownNamespace(_) => "`outboard namespace list` shows those that there are",
        AdminError::BadBlocks(_) => "give it another size, such as 16GiB",
        AdminError::BadBlockLen(_) => "use a device with blocks of 512 or 4096 bytes",
        AdminError::DuplicateId => {
            "two entries of nvme.json in the card's directory have the same ids: take one of them out"
        }
        AdminError::BadReservations(_) => {
            "take the namespace's `reservations` out of nvme.json in the card's directory; hosts then register anew"
        }
        AdminError::SubsystemExists(_) | AdminError::UnknownSubsystem => {
            "`nqn` in [nvme] or [[nvme.subsystem]] names a subsystem: give each a name of its own"
        }
        AdminError::UnknownPort(_) | AdminError::PortExists(_) => {
            "`listen` in [nvme] or [[nvme.subsystem]] says where it is served: give it an address of its own"
        }
        AdminError::BadText(_) | AdminError::ControllerRange { .. } | AdminError::BadAnaGroup { .. } => {
            "nvme.json in the card's directory says what the subsystem is like: put back one from before"
        }
    }
}

/// What to do where a file or a device does not get the size that was asked for.
pub(super) fn of_resizing(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::Unsupported => {
            "it has the size that it has; `outboard namespace add` makes another one of the size that you want"
        }
        io::ErrorKind::InvalidInput => {
            "give a file at least one block, such as 1MiB; a disk has the size that it has"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room on the disk that it lies on",
        io::ErrorKind::FileTooLarge => "give it less: the file system that it lies on has no larger files",
        _ => "`outboard namespace list` shows the size that it has; the card's log tells more",
    }
}

/// The same where it lies on a file of the card.
pub(super) fn of_resizing_volume(error: FileError) -> &'static str {
    match error {
        FileError::NoSpace => "`outboard files df` shows the space, `outboard files rm` makes room",
        FileError::TooLarge => "give it less: `outboard files df` shows how much there is",
        FileError::ReadOnly => "the card's files cannot be changed: `outboard status` says why",
        FileError::Busy => "there is too much on its way to it for the moment: try again",
        _ => "`outboard namespace list` shows the size that it has; the card's log tells more",
    }
}
