//! Being told to stop: what is in flight is answered, nothing new is taken, and the exit is a good one.

use crate::program::Server;
use std::net::TcpStream;

#[test]
fn signals_end_it_well() {
    for signal in ["INT", "TERM"] {
        let server = Server::start([""; 0]);
        assert_eq!(server.client().check("alice", "/").status, 200);
        server.signal(signal);
        server.until_logged("stopped; all requests were drained");
        assert_eq!(server.ended().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_request_in_flight_is_answered() {
    for signal in ["INT", "TERM"] {
        let server = Server::start([""; 0]);
        let (mut idle, mut busy) = (server.client(), server.client());
        assert_eq!(idle.get("/healthz").status, 200);
        let body = r#"{"key":"alice","endpoint":"/"}"#;
        busy.send(&format!(
            "POST /v1/check HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        ));
        assert_eq!(busy.reply().status, 100, "the request is being read");
        server.signal(signal);
        server.until_logged("stopping");
        busy.send(body);
        let reply = busy.reply();
        assert_eq!((reply.status, &reply.json()["remaining"]), (200, &4.into()), "{signal}");
        let address = server.address;
        assert_eq!(server.ended().code(), Some(0), "{signal}");
        assert!(TcpStream::connect(address).is_err());
    }
}
