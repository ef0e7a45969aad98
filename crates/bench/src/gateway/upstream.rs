//! The upstream of both proxies: a constant response at the least cost.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Sun, 15 Nov 2026 12:00:00 GMT\r\nServer: upstream\r\nContent-Length: 121\r\n\r\n{\"id\":17,\"customer\":\"Ada Lovelace\",\"items\":[{\"name\":\"engine\",\"count\":1}],\"total\":1842,\"note\":\"difference and analytical\"}";

/// Serves until the parent process ends.
pub fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        super::process::exit_with_parent();
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(answer(stream));
        }
    });
}

/// Answers the requests of a connection. They have no body and come one at a time.
async fn answer(mut stream: TcpStream) {
    let mut buffer = vec![0; 16 << 10];
    let mut filled = 0;
    while let Ok(count @ 1..) = stream.read(&mut buffer[filled..]).await {
        filled += count;
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            filled = 0;
            if stream.write_all(ANSWER).await.is_err() {
                return;
            }
        }
    }
}
