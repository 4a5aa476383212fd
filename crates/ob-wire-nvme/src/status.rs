//! How a command ended (Base §3.3.3.2.1).

use std::fmt;

/// The status field of a completion: what the queue entry carries in bits 15:1 of its last word.
///
/// ```text
///   14   13   12 11   10  9  8   7 … 0
///   DNR  M    CRD     SCT        SC
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(u16);

codes! {
    /// Status code type (Base §3.3.3.2.1).
    StatusKind: u8, "status code type" {
        /// Any command may end so.
        Generic = 0,
        /// Depends on the opcode.
        CommandSpecific = 1,
        /// The medium or the data.
        Media = 2,
        /// The path to the controller, not the command.
        Path = 3,
        /// Vendor specific.
        Vendor = 7,
    }
}

const DO_NOT_RETRY: u16 = 1 << 14;
const CODE_MASK: u16 = 0x07FF;

impl Status {
    /// A status by type and code, without flags.
    #[must_use]
    pub const fn new(kind: u8, code: u8) -> Self {
        Self(((kind as u16 & 7) << 8) | code as u16)
    }

    /// From the word of a completion entry, whose lowest bit is the phase tag.
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Self(field >> 1)
    }

    /// The word of a completion entry, with the phase tag clear as fabrics demand (Base §3.3.3.2).
    #[must_use]
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// The fifteen bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// SCT.
    #[must_use]
    pub const fn kind(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// SC.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// Type and code alone, for a comparison that ignores the flags.
    #[must_use]
    pub const fn without_flags(self) -> Self {
        Self(self.0 & CODE_MASK)
    }

    /// Whether type and code are the same.
    #[must_use]
    pub const fn is(self, other: Self) -> bool {
        self.0 & CODE_MASK == other.0 & CODE_MASK
    }

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE_MASK == 0
    }

    /// DNR: the same command would fail again.
    #[must_use]
    pub const fn do_not_retry(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// With DNR set.
    #[must_use]
    pub const fn with_do_not_retry(self) -> Self {
        Self(self.0 | DO_NOT_RETRY)
    }
}

macro_rules! statuses {
    ($($(#[$section:meta])* { $($name:ident = $kind:literal, $code:literal, $text:literal;)* })*) => {
        impl Status {
            $($(
                #[doc = concat!("SCT ", stringify!($kind), ", SC ", stringify!($code), ": ", $text, ".")]
                pub const $name: Self = Self::new($kind, $code);
            )*)*

            /// Every status that has a name, with its text.
            pub const NAMED: &[(Self, &str)] = &[$($((Self::$name, $text)),*),*];
        }
    };
}

statuses! {
    // Generic, Base §3.3.3.2.1.1.
    {
        SUCCESS = 0, 0x00, "success";
        INVALID_OPCODE = 0, 0x01, "invalid command opcode";
        INVALID_FIELD = 0, 0x02, "invalid field in command";
        COMMAND_ID_CONFLICT = 0, 0x03, "command id conflict";
        DATA_TRANSFER_ERROR = 0, 0x04, "data transfer error";
        POWER_LOSS = 0, 0x05, "aborted: power loss notification";
        INTERNAL_ERROR = 0, 0x06, "internal error";
        ABORT_REQUESTED = 0, 0x07, "aborted as requested";
        ABORTED_SQ_DELETION = 0, 0x08, "aborted: the queue was deleted";
        ABORTED_FAILED_FUSED = 0, 0x09, "aborted: the other fused command failed";
        ABORTED_MISSING_FUSED = 0, 0x0A, "aborted: the other fused command is missing";
        INVALID_NAMESPACE = 0, 0x0B, "invalid namespace or format";
        COMMAND_SEQUENCE_ERROR = 0, 0x0C, "command sequence error";
        INVALID_SGL_SEGMENT = 0, 0x0D, "invalid SGL segment descriptor";
        INVALID_SGL_COUNT = 0, 0x0E, "invalid number of SGL descriptors";
        INVALID_SGL_LENGTH = 0, 0x0F, "data SGL length invalid";
        INVALID_METADATA_SGL_LENGTH = 0, 0x10, "metadata SGL length invalid";
        INVALID_SGL_TYPE = 0, 0x11, "SGL descriptor type invalid";
        INVALID_CMB_USE = 0, 0x12, "invalid use of controller memory buffer";
        INVALID_PRP_OFFSET = 0, 0x13, "PRP offset invalid";
        ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, "atomic write unit exceeded";
        OPERATION_DENIED = 0, 0x15, "operation denied";
        INVALID_SGL_OFFSET = 0, 0x16, "SGL offset invalid";
        HOST_ID_INCONSISTENT = 0, 0x18, "host identifier inconsistent format";
        KEEP_ALIVE_EXPIRED = 0, 0x19, "keep alive timer expired";
        INVALID_KEEP_ALIVE = 0, 0x1A, "keep alive timeout invalid";
        ABORTED_PREEMPTED = 0, 0x1B, "aborted: preempt and abort";
        SANITIZE_FAILED = 0, 0x1C, "sanitize failed";
        SANITIZE_IN_PROGRESS = 0, 0x1D, "sanitize in progress";
        INVALID_SGL_GRANULARITY = 0, 0x1E, "SGL data block granularity invalid";
        COMMAND_IN_CMB_UNSUPPORTED = 0, 0x1F, "command in controller memory buffer not supported";
        NAMESPACE_WRITE_PROTECTED = 0, 0x20, "namespace is write protected";
        COMMAND_INTERRUPTED = 0, 0x21, "command interrupted";
        TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "transient transport error";
        PROHIBITED_BY_LOCKDOWN = 0, 0x23, "command prohibited by lockdown";
        ADMIN_MEDIA_NOT_READY = 0, 0x24, "admin command: media not ready";
        // Of the NVM command set, NVM §3.1.2.
        LBA_OUT_OF_RANGE = 0, 0x80, "LBA out of range";
        CAPACITY_EXCEEDED = 0, 0x81, "capacity exceeded";
        NAMESPACE_NOT_READY = 0, 0x82, "namespace not ready";
        RESERVATION_CONFLICT = 0, 0x83, "reservation conflict";
        FORMAT_IN_PROGRESS = 0, 0x84, "format in progress";
    }
    // Command specific, Base §3.3.3.2.1.2.
    {
        INVALID_COMPLETION_QUEUE = 1, 0x00, "completion queue invalid";
        INVALID_QUEUE_ID = 1, 0x01, "invalid queue identifier";
        INVALID_QUEUE_SIZE = 1, 0x02, "invalid queue size";
        ABORT_LIMIT_EXCEEDED = 1, 0x03, "abort command limit exceeded";
        ASYNC_EVENT_LIMIT_EXCEEDED = 1, 0x05, "asynchronous event request limit exceeded";
        INVALID_FIRMWARE_SLOT = 1, 0x06, "invalid firmware slot";
        INVALID_FIRMWARE_IMAGE = 1, 0x07, "invalid firmware image";
        INVALID_INTERRUPT_VECTOR = 1, 0x08, "invalid interrupt vector";
        INVALID_LOG_PAGE = 1, 0x09, "invalid log page";
        INVALID_FORMAT = 1, 0x0A, "invalid format";
        FEATURE_NOT_SAVEABLE = 1, 0x0D, "feature identifier not saveable";
        FEATURE_NOT_CHANGEABLE = 1, 0x0E, "feature not changeable";
        FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0F, "feature not namespace specific";
        INSUFFICIENT_CAPACITY = 1, 0x15, "namespace insufficient capacity";
        NAMESPACE_ID_UNAVAILABLE = 1, 0x16, "namespace identifier unavailable";
        NAMESPACE_ALREADY_ATTACHED = 1, 0x18, "namespace already attached";
        NAMESPACE_IS_PRIVATE = 1, 0x19, "namespace is private";
        NAMESPACE_NOT_ATTACHED = 1, 0x1A, "namespace not attached";
        INVALID_CONTROLLER_LIST = 1, 0x1C, "controller list invalid";
        ANA_GROUP_INVALID = 1, 0x24, "ANA group identifier invalid";
        COMMAND_SET_NOT_SUPPORTED = 1, 0x29, "I/O command set not supported";
        COMMAND_SET_NOT_ENABLED = 1, 0x2A, "I/O command set not enabled";
        // Of fabrics commands (their codes overlap with those of the NVM command set below).
        CONNECT_INCOMPATIBLE_FORMAT = 1, 0x80, "incompatible format";
        CONNECT_CONTROLLER_BUSY = 1, 0x81, "controller busy";
        CONNECT_INVALID_PARAMETERS = 1, 0x82, "connect invalid parameters";
        CONNECT_RESTART_DISCOVERY = 1, 0x83, "connect restart discovery";
        CONNECT_INVALID_HOST = 1, 0x84, "connect invalid host";
        INVALID_QUEUE_TYPE = 1, 0x85, "invalid queue type";
        DISCOVER_RESTART = 1, 0x90, "discover restart";
        AUTHENTICATION_REQUIRED = 1, 0x91, "authentication required";
    }
    // Media and data integrity, Base §3.3.3.2.1.3.
    {
        WRITE_FAULT = 2, 0x80, "write fault";
        UNRECOVERED_READ_ERROR = 2, 0x81, "unrecovered read error";
        GUARD_CHECK_ERROR = 2, 0x82, "end-to-end guard check error";
        APPLICATION_TAG_CHECK_ERROR = 2, 0x83, "end-to-end application tag check error";
        REFERENCE_TAG_CHECK_ERROR = 2, 0x84, "end-to-end reference tag check error";
        COMPARE_FAILURE = 2, 0x85, "compare failure";
        ACCESS_DENIED = 2, 0x86, "access denied";
        DEALLOCATED_OR_UNWRITTEN = 2, 0x87, "deallocated or unwritten logical block";
    }
    // Path related, Base §3.3.3.2.1.4.
    {
        INTERNAL_PATH_ERROR = 3, 0x00, "internal path error";
        ANA_PERSISTENT_LOSS = 3, 0x01, "asymmetric access persistent loss";
        ANA_INACCESSIBLE = 3, 0x02, "asymmetric access inaccessible";
        ANA_TRANSITION = 3, 0x03, "asymmetric access transition";
        CONTROLLER_PATHING_ERROR = 3, 0x60, "controller pathing error";
        HOST_PATHING_ERROR = 3, 0x70, "host pathing error";
        ABORTED_BY_HOST = 3, 0x71, "command aborted by host";
    }
    // Of storage functions, docs/wire/pushdown.md.
    {
        PUSHDOWN_PROGRAM = 7, 0xC0, "the program gave the request up";
        PUSHDOWN_FAULT = 7, 0xC1, "the program was stopped";
        PUSHDOWN_FUEL = 7, 0xC2, "the request has used its fuel";
        PUSHDOWN_READS = 7, 0xC3, "the request has made all its reads";
        PUSHDOWN_CHANGED = 7, 0xC4, "a file has changed";
        PUSHDOWN_UNKNOWN = 7, 0xC5, "unknown program, file or plan";
        PUSHDOWN_RANGE = 7, 0xC6, "a read that the request may not make";
        PUSHDOWN_REFUSED = 7, 0xC7, "the object is refused";
        PUSHDOWN_LIMIT = 7, 0xC8, "the limit of programs, files, plans or queries is reached";
        PUSHDOWN_TIME = 7, 0xC9, "the request took too long";
    }
}

impl Status {
    /// The status in words, if it has a name. The command-specific codes from 80h on depend on the command: the words
    /// are those of the fabrics.
    #[must_use]
    pub fn text(self) -> Option<&'static str> {
        Self::NAMED.iter().find(|(status, _)| self.is(*status)).map(|(_, text)| *text)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text().unwrap_or("unknown status");
        write!(formatter, "{text} ({:x}/{:02x}h)", self.kind(), self.code())?;
        if self.do_not_retry() { formatter.write_str(", do not retry") } else { Ok(()) }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl std::error::Error for Status {}
