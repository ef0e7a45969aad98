//! The socket to a StatsD server.

use cadence::{MetricSink, UdpMetricSink, UnixMetricSink};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

/// How long a packet may wait for room in the socket's buffer.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a StatsD server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StatsdAddress {
    /// A host and a port.
    Udp(String),
    /// The path of a datagram socket.
    Unix(PathBuf),
}

impl StatsdAddress {
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return path.starts_with('/').then(|| Self::Unix(PathBuf::from(path)));
        }
        let (host, port) = text.rsplit_once(':')?;
        let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
        (!host.is_empty() && is_port).then(|| Self::Udp(text.to_owned()))
    }
}

/// A socket that is opened again after an error, and when the name of the server has another address.
pub(super) struct StatsdSocket {
    address: StatsdAddress,
    open: Option<OpenSocket>,
}

enum OpenSocket {
    Udp {
        server: SocketAddr,
        sink: UdpMetricSink,
        /// The same socket, to ask for errors.
        socket: UdpSocket,
    },
    Unix(UnixMetricSink),
}

impl StatsdSocket {
    pub(super) fn new(address: StatsdAddress) -> Self {
        Self { address, open: None }
    }

    /// Prepares for a flush.
    pub(super) fn open(&mut self) -> io::Result<()> {
        let opened = match &self.address {
            StatsdAddress::Udp(address) => {
                let found = address.to_socket_addrs()?.next();
                let server =
                    found.ok_or_else(|| io::Error::other("the name of the server has no address"))?;
                if matches!(&self.open, Some(OpenSocket::Udp { server: known, .. }) if *known == server) {
                    return Ok(());
                }
                open_udp(server)?
            }
            StatsdAddress::Unix(path) => {
                if self.open.is_some() {
                    return Ok(());
                }
                let socket = UnixDatagram::unbound()?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                OpenSocket::Unix(UnixMetricSink::from(path, socket))
            }
        };
        self.open = Some(opened);
        Ok(())
    }

    /// Sends a packet. After an error the socket has to be opened again.
    pub(super) fn send(&mut self, packet: &str) -> io::Result<()> {
        let sent = match &self.open {
            Some(OpenSocket::Udp { sink, socket, .. }) => sink.emit(packet).and_then(|_| {
                // A server on this machine that does not listen is noticed at once, others with a later packet.
                socket.take_error()?.map_or(Ok(()), Err)
            }),
            Some(OpenSocket::Unix(sink)) => sink.emit(packet).map(|_| ()),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if sent.is_err() {
            self.open = None;
        }
        sent
    }
}

fn open_udp(server: SocketAddr) -> io::Result<OpenSocket> {
    let socket = match server {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
    };
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    // Only a connected socket reports that the server does not listen.
    socket.connect(server)?;
    let sink = UdpMetricSink::from(server, socket.try_clone()?).map_err(io::Error::other)?;
    Ok(OpenSocket::Udp { server, sink, socket })
}

impl fmt::Debug for StatsdSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsdSocket").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let udp = |text: &str| Some(StatsdAddress::Udp(text.to_owned()));
        let unix = |path: &str| Some(StatsdAddress::Unix(PathBuf::from(path)));
        for (text, expected) in [
            ("127.0.0.1:8125", udp("127.0.0.1:8125")),
            ("[::1]:8125", udp("[::1]:8125")),
            ("statsd.internal:8125", udp("statsd.internal:8125")),
            ("unix:/run/statsd.sock", unix("/run/statsd.sock")),
            ("unix:///run/statsd.sock", unix("/run/statsd.sock")),
            ("unix:statsd.sock", None),
            ("statsd", None),
            (":8125", None),
            ("statsd:0", None),
            ("statsd:65536", None),
            ("", None),
        ] {
            assert_eq!(StatsdAddress::parse(text), expected, "{text}");
        }
    }
}
