//! A small client of the key-value service, which blocks: what a test sends is what goes out, byte by byte.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::DEADLINE;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Status(String),
    Error(String),
    Number(i64),
    Bytes(Vec<u8>),
    Nothing,
    Many(Vec<Self>),
}

impl Value {
    pub(crate) fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    pub(crate) fn bytes(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bytes(bytes.as_ref().to_vec())
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that were replies already.
    taken: usize,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::of(TcpStream::connect_timeout(&address, DEADLINE)?)
    }

    /// A connection that comes from an address, and a port if there is one in it.
    pub(crate) fn connect_from(own: SocketAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &own)?;
        connect(&socket, &address)?;
        Self::of(TcpStream::from(socket))
    }

    fn of(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new(), taken: 0 })
    }

    /// Another handle to the same connection, for a thread that only sends.
    pub(crate) fn sender(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish_sending(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// One request, and its reply.
    pub(crate) fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Value> {
        self.send(&request(words))?;
        self.receive()
    }

    /// The same, of words in a line.
    pub(crate) fn ask_line(&mut self, line: &str) -> io::Result<Value> {
        self.ask(&line.split(' ').collect::<Vec<_>>())
    }

    /// The next reply; `UnexpectedEof` where the server has ended the connection.
    pub(crate) fn receive(&mut self) -> io::Result<Value> {
        loop {
            let mut reader = Reader { bytes: self.buffer.get(self.taken..).unwrap_or_default(), at: 0 };
            match reader.value() {
                Ok(Some(value)) => {
                    self.taken += reader.at;
                    return Ok(value);
                }
                Ok(None) => self.fill()?,
                Err(what) => return Err(io::Error::new(ErrorKind::InvalidData, what)),
            }
        }
    }

    /// Waits until the server ends the connection, whatever it says before.
    pub(crate) fn wait_for_end(&mut self) -> Vec<Value> {
        let mut said = Vec::new();
        loop {
            match self.receive() {
                Ok(value) => said.push(value),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("the connection has not ended in time; it said {said:?}")
                }
                Err(_) => return said,
            }
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..std::mem::take(&mut self.taken));
        // A long reply is read again from its begin when more of it is there: so that this does not happen often, much
        // is read at once.
        let (len, piece) = (self.buffer.len(), self.buffer.len().clamp(64 << 10, 8 << 20));
        self.buffer.resize(len + piece, 0);
        let read = self.stream.read(self.buffer.get_mut(len..).unwrap_or_default());
        self.buffer.truncate(len + *read.as_ref().unwrap_or(&0));
        if read? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// A request as clients send it.
pub(crate) fn request<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The reply at the front, or nothing while it is not whole.
    fn value(&mut self) -> Result<Option<Value>, String> {
        let Some(line) = self.line() else { return Ok(None) };
        let Some((kind, rest)) = line.split_first() else { return Err("an empty line".to_owned()) };
        let text = || String::from_utf8_lossy(rest).into_owned();
        let number = || text().parse::<i64>().map_err(|error| format!("{}: {error}", text()));
        let value = match kind {
            b'+' => Value::Status(text()),
            b'-' => Value::Error(text()),
            b':' => Value::Number(number()?),
            b'_' => Value::Nothing,
            b'$' | b'*' if rest == b"-1" => Value::Nothing,
            b'$' => {
                let len = usize::try_from(number()?).map_err(|error| error.to_string())?;
                let Some(found) = self.bytes.get(self.at..self.at + len + 2) else { return Ok(None) };
                let Some(bytes) = found.strip_suffix(b"\r\n") else {
                    return Err(format!("a string of {len} bytes does not end there"));
                };
                self.at += len + 2;
                Value::Bytes(bytes.to_vec())
            }
            b'*' | b'%' => {
                let count = number()? * if *kind == b'%' { 2 } else { 1 };
                let mut values = Vec::new();
                for _ in 0..count {
                    let Some(value) = self.value()? else { return Ok(None) };
                    values.push(value);
                }
                Value::Many(values)
            }
            other => return Err(format!("a reply begins with {:?}", char::from(*other))),
        };
        Ok(Some(value))
    }

    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let len = rest.windows(2).position(|pair| pair == b"\r\n")?;
        self.at += len + 2;
        rest.get(..len)
    }
}
