//! Files of a mounted file system, for one request.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_pushdown::client::{Detour, MapSource, PushError};
use ob_pushdown::kernel::MountedFile;

use super::carrier::Carrier;
use super::error::{PushdownError, Unmapped};

/// The files that were named, each with a map when it was opened.
pub(super) struct Mounted {
    files: Vec<(PathBuf, Arc<MountedFile>)>,
}

impl Mounted {
    /// Opens and maps them. A library would leave a file that has no map to the ordinary path; there is none here, so it is said
    /// before anything is asked.
    pub(super) fn open(paths: &[PathBuf], carrier: &Carrier) -> Result<Self, PushdownError> {
        let Carrier::Kernel { transport, device } = carrier else { return Ok(Self { files: Vec::new() }) };
        if paths.is_empty() {
            return Ok(Self { files: Vec::new() });
        }
        let (system, place) = (System::default(), (transport.namespace(), device.as_str()));
        let keeper = Arc::new(LeaseKeeper::start().map_err(PushdownError::Leases)?);
        let open = |path: &PathBuf| {
            let file = MountedFile::open(path, place, &system, &keeper)
                .map_err(|error| PushdownError::Open(Box::new(error)))?;
            match file.current() {
                Some(_) => Ok((path.clone(), Arc::new(file))),
                None => Err(unmapped(path, &file)),
            }
        };
        Ok(Self { files: paths.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// Where each of them lies.
    pub(super) fn sources(&self) -> impl Iterator<Item = Arc<dyn MapSource>> {
        self.files.iter().map(|(_, file)| Arc::clone(file) as Arc<dyn MapSource>)
    }

    /// What a failed request means, if it is because one of these has no map any more.
    pub(super) fn explain(&self, error: PushError) -> PushdownError {
        if !matches!(error.detour(), Some(Detour::Changed | Detour::Unmapped)) {
            return error.into();
        }
        let lost = self.files.iter().find(|(_, file)| file.version().is_none());
        lost.map_or_else(|| error.into(), |(path, file)| unmapped(path, file))
    }
}

fn unmapped(path: &Path, file: &MountedFile) -> PushdownError {
    let why = file.refusal().map_or(Unmapped::Meanwhile, Unmapped::Refused);
    PushdownError::Mounted { path: path.to_owned(), why }
}
