//! Shutdown: requests in flight are drained, new connections are refused, and the exit code is 0.

use crate::process::TollgateProcess;
use std::net::TcpStream;

#[test]
fn sigint_and_sigterm_exit_with_0() {
    for signal in ["INT", "TERM"] {
        let server = TollgateProcess::start([""; 0]);
        assert_eq!(server.client().check("alice", "/").status, 200);
        server.signal(signal);
        server.wait_for_log("stopped; all requests were drained");
        assert_eq!(server.wait().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_request_in_flight_is_drained() {
    for signal in ["INT", "TERM"] {
        let server = TollgateProcess::start([""; 0]);
        let (mut idle, mut busy) = (server.client(), server.client());
        assert_eq!(idle.get("/healthz").status, 200);
        let body = r#"{"key":"alice","endpoint":"/"}"#;
        busy.send(&format!(
            "POST /v1/check HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        ));
        assert_eq!(busy.reply().status, 100, "the request is being read");
        server.signal(signal);
        server.wait_for_log("stopping");
        busy.send(body);
        let reply = busy.reply();
        assert_eq!((reply.status, &reply.json()["remaining"]), (200, &4.into()), "{signal}");
        let address = server.address;
        assert_eq!(server.wait().code(), Some(0), "{signal}");
        assert!(TcpStream::connect(address).is_err());
    }
}
