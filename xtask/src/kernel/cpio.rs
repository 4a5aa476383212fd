//! Archives in cpio's `newc` form, which is what the kernel unpacks as its first root file system.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const MODE_FOLDER: u32 = 0o040_755;
const MODE_FILE: u32 = 0o100_000;
const MODE_LINK: u32 = 0o120_777;

/// An archive that is being written. Folders must be added before what lies in them.
pub struct Archive<W: Write> {
    output: W,
    entries: u32,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub fn new(output: W) -> Self {
        Self { output, entries: 0 }
    }

    /// Adds a folder. Adding it twice does no harm.
    ///
    /// # Errors
    /// When the output cannot be written, as for all of these.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, MODE_FOLDER, &[])
    }

    /// Adds a file with these permissions.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, MODE_FILE | permissions, content)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn link(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.entry(path, MODE_LINK, to.as_bytes())
    }

    /// Adds a copy of a file of this machine.
    ///
    /// # Errors
    /// When the file cannot be read or the output cannot be written.
    pub fn copy(&mut self, path: &str, from: &Path) -> io::Result<()> {
        let permissions = fs::metadata(from)?.permissions().mode() & 0o777;
        self.file(path, permissions, &fs::read(from)?)
    }

    /// Adds a folder of this machine with everything below it.
    ///
    /// # Errors
    /// When something cannot be read or the output cannot be written.
    pub fn tree(&mut self, path: &str, from: &Path) -> io::Result<()> {
        self.folder(path)?;
        let mut entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let below = format!("{path}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.tree(&below, &entry.path())?;
            } else {
                self.copy(&below, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Ends the archive, and gives back what it was written to.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} does not fit"));
        let content_len = u32::try_from(content.len()).map_err(too_large)?;
        let name_len = u32::try_from(path.len() + 1).map_err(too_large)?;
        // Number, mode, user, group, links, time, length, two devices of two numbers each, name's length, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, content_len, 0, 0, 0, 0, name_len, 0];
        self.output.write_all(b"070701")?;
        for field in fields {
            write!(self.output, "{field:08x}")?;
        }
        self.output.write_all(path.as_bytes())?;
        self.output.write_all(&[0])?;
        self.pad(6 + 8 * fields.len() + path.len() + 1)?;
        self.output.write_all(content)?;
        self.pad(content.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.output.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_layout_that_the_kernel_reads() {
        let mut archive = Archive::new(Vec::new());
        archive.folder("a").unwrap();
        archive.file("a/bc", 0o644, b"hello").unwrap();
        archive.link("d", "a/bc").unwrap();
        let bytes = archive.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let file = text.find("a/bc\0").unwrap();
        let header = &text[file - 110..file];
        assert!(header.starts_with("07070100000002000081a4"), "{header}");
        assert_eq!(&header[54..62], "00000005", "the length of the content");
        assert_eq!(&header[94..102], "00000005", "the length of the name with its end");
        // 110 bytes of header and 5 of name leave one byte to a multiple of four; 5 bytes of content leave three.
        assert!(text[file..].starts_with("a/bc\0\0hello\0\0\x00070701"), "{:?}", &text[file..]);
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"), "{text:?}");
        assert_eq!(text.len() % 4, 0);
    }
}
