//! Blocking socket that sends requests and receives replies, a batch at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::batch::{Answer, Batch, Request};
use super::protocol::Protocol;

/// Silence of the server after which it counts as hung.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(20);

/// Initial room for replies; grows to the size of one reply.
const INBOX: usize = 64 << 10;

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    protocol: Protocol,
    /// Bytes that are received but not yet decoded are `inbox[start..end]`.
    inbox: Vec<u8>,
    start: usize,
    end: usize,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// If nothing listens at the address.
    pub fn open(address: SocketAddr, protocol: Protocol) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, SILENCE_TIMEOUT)
            .with_context(|| format!("cannot connect to {address}: is the server running?"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
        stream.set_write_timeout(Some(SILENCE_TIMEOUT))?;
        Ok(Self {
            stream,
            protocol,
            inbox: vec![0; INBOX],
            start: 0,
            end: 0,
        })
    }

    /// Sends the batch, and passes each of its requests to `each`, in order, with its answer and the time since the
    /// batch was sent. Answers that arrive together share their time.
    ///
    /// # Errors
    /// If the server hangs, hangs up, sends bytes that are no reply, or sends too many replies; or the error of `each`.
    pub fn exchange(
        &mut self,
        batch: &mut Batch<'_>,
        mut each: impl FnMut(Request, Answer<'_>, Duration) -> Result<()>,
    ) -> Result<()> {
        let sent = Instant::now();
        self.stream
            .write_all(batch.bytes())
            .context("the server does not take requests")?;
        while !batch.is_done() {
            self.receive()?;
            let took = sent.elapsed();
            while !batch.is_done() {
                let received = &self.inbox[self.start..self.end];
                let Some((reply, used)) = self.protocol.decode(received)? else {
                    break;
                };
                batch.take(&reply, |request, answer| each(request, answer, took))?;
                self.start += used;
            }
        }
        if self.start < self.end {
            bail!("the server sent more replies than it had requests");
        }
        Ok(())
    }

    /// Waits for more bytes.
    fn receive(&mut self) -> Result<()> {
        self.inbox.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.inbox.len() {
            self.inbox.resize(self.inbox.len() * 2, 0);
        }
        let free = &mut self.inbox[self.end..];
        let read = loop {
            match self.stream.read(free) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => break result.context("the server does not answer")?,
            }
        };
        if read == 0 {
            bail!("the server closed the connection");
        }
        self.end += read;
        Ok(())
    }
}
