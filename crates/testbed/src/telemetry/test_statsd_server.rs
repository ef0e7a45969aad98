//! A StatsD server that adds up what it receives.

use super::totals::{TotalValue, Totals, number};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// The packet that ends the server.
const END: &[u8] = b"end";

/// See the module.
#[derive(Debug)]
pub struct TestStatsdServer {
    address: StatsdServerAddress,
    thread: JoinHandle<Totals>,
}

#[derive(Debug)]
enum StatsdServerAddress {
    Udp(SocketAddr),
    Unix(PathBuf),
}

impl TestStatsdServer {
    /// A server that receives from `socket`.
    pub fn udp(socket: UdpSocket) -> Self {
        let address = StatsdServerAddress::Udp(socket.local_addr().unwrap());
        let thread = std::thread::spawn(move || receive(|packet| socket.recv(packet)));
        Self { address, thread }
    }

    /// A server that receives from `socket`, which is bound to `path`.
    pub fn unix(path: &Path, socket: UnixDatagram) -> Self {
        let thread = std::thread::spawn(move || receive(|packet| socket.recv(packet)));
        Self { address: StatsdServerAddress::Unix(path.to_owned()), thread }
    }

    /// What it received until now.
    pub fn stop(self) -> Totals {
        match &self.address {
            StatsdServerAddress::Udp(address) => {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.send_to(END, address).unwrap();
            }
            StatsdServerAddress::Unix(path) => {
                let socket = UnixDatagram::unbound().unwrap();
                socket.send_to(END, path).unwrap();
            }
        }
        self.thread.join().unwrap()
    }
}

fn receive(mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>) -> Totals {
    let mut totals = Totals::new();
    let mut packet = [0; 65_536];
    loop {
        let length = receive(&mut packet).unwrap();
        if &packet[..length] == END {
            return totals;
        }
        assert!(length < 1_432, "{length} bytes");
        let text = std::str::from_utf8(&packet[..length]).unwrap();
        text.lines().for_each(|line| add_line(&mut totals, line));
    }
}

fn add_line(totals: &mut Totals, line: &str) {
    let mut parts = line.split('|');
    let (name, value) = parts.next().unwrap().rsplit_once(':').unwrap();
    let kind = parts.next().unwrap();
    let tags = parts.next().map_or("", |tags| tags.strip_prefix('#').unwrap());
    assert_eq!(parts.next(), None, "{line}");
    let tags = tags.split(',').filter(|tag| !tag.is_empty()).map(|tag| {
        let (label, value) = tag.split_once(':').unwrap();
        (label.to_owned(), value.to_owned())
    });
    let series = (name.to_owned(), tags.collect());
    match kind {
        "c" => {
            let growth: u64 = value.parse().unwrap();
            let total = totals.entry(series).or_insert(TotalValue::Count(0));
            let TotalValue::Count(total) = total else { panic!("{line}") };
            *total += growth;
        }
        "g" => {
            totals.insert(series, number(value.parse().unwrap()));
        }
        other => panic!("{other}"),
    }
}
