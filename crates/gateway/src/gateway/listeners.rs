//! Listening sockets that threads share a port with.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// The most connections that wait to be accepted, on each thread.
const BACKLOG: i32 = 4096;

/// Binds `count` listeners to one port; the kernel distributes connections among them.
pub(super) fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    // `SO_REUSEPORT` would let another process share the port as well, unnoticed. Without it, this bind fails if the
    // port is in use.
    let exclusive = socket(address)?;
    exclusive.bind(&address.into())?;
    let address = exclusive.local_addr()?.as_socket().unwrap_or(address);
    drop(exclusive);
    let listen = |_| {
        let socket = socket(address)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    (0..count).map(listen).collect()
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for connections in `TIME_WAIT`.
    socket.set_reuse_address(true)?;
    Ok(socket)
}
