//! The peer: nginx of Debian, with `limit_req` before `proxy_pass`.

use super::process::ServerProcess;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The limits of both proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyLimits {
    /// All requests pass.
    Generous,
    /// Almost all requests are refused with 429.
    Tiny,
}

pub struct NginxProcess {
    pub process: ServerProcess,
    _folder: TempDir,
}

pub fn is_installed() -> bool {
    Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

impl NginxProcess {
    pub fn start(upstream: SocketAddr, workers: usize, limits: ProxyLimits) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().display();
        // Another process may take the port first; then nginx does not start, and the assertion below fails.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = port.expect("a free port");
        let limit = match limits {
            ProxyLimits::Generous => ("1000000r/s", "limit_req zone=all burst=1000000 nodelay;"),
            ProxyLimits::Tiny => ("1r/m", "limit_req zone=all;"),
        };
        let (rate, limit) = limit;
        let config = format!(
            "daemon off;
worker_processes {workers};
user root;
pid {path}/nginx.pid;
error_log {path}/error.log crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {path}/body;
    proxy_temp_path {path}/proxy;
    fastcgi_temp_path {path}/fastcgi;
    uwsgi_temp_path {path}/uwsgi;
    scgi_temp_path {path}/scgi;
    keepalive_requests 1000000000;
    limit_req_zone $binary_remote_addr zone=all:10m rate={rate};
    limit_req_status 429;
    limit_req_log_level info;
    upstream upstream {{
        server {upstream};
        keepalive 256;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {address} reuseport;
        location / {{
            {limit}
            proxy_pass http://upstream;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
        }}
    }}
}}
"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, config).expect("a file");
        let mut command = Command::new("nginx");
        command.arg("-e").arg(folder.path().join("error.log")).arg("-c").arg(&file);
        let child = command.stdin(Stdio::null()).spawn().expect("nginx starts");
        let process = ServerProcess::new(child, address);
        let is_up = (0..200).any(|_| {
            thread::sleep(Duration::from_millis(10));
            TcpStream::connect(address).is_ok()
        });
        assert!(is_up, "nginx does not start");
        Self { process, _folder: folder }
    }
}
