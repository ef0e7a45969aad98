//! The endpoints of a server: which paths it answers, with which methods, and the response to all others.

use crate::error::HttpError;
use crate::response::{self, FullResponse};
use http::Method;

/// The methods of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointMethods {
    /// GET and HEAD.
    Read,
    /// POST.
    Post,
    /// GET, HEAD and POST.
    ReadOrPost,
}

impl EndpointMethods {
    /// As the `Allow` header lists them.
    fn allow(self) -> &'static str {
        match self {
            Self::Read => "GET, HEAD",
            Self::Post => "POST",
            Self::ReadOrPost => "GET, HEAD, POST",
        }
    }

    fn contains(self, method: &Method) -> bool {
        match self {
            Self::Read => method == Method::GET || method == Method::HEAD,
            Self::Post => method == Method::POST,
            Self::ReadOrPost => method == Method::POST || Self::Read.contains(method),
        }
    }
}

/// The endpoints of a server, each with its path, its methods and its name in the server.
#[derive(Clone, Copy, Debug)]
pub struct EndpointTable<E: 'static>(pub &'static [(&'static str, EndpointMethods, E)]);

impl<E: Copy> EndpointTable<E> {
    /// The endpoint at `path`. Without one the response is a 404 that names all endpoints, and with another method a
    /// 405.
    pub fn find(&self, method: &Method, path: &str) -> Result<E, Box<FullResponse>> {
        match self.0.iter().find(|(known, ..)| *known == path) {
            Some((_, methods, endpoint)) if methods.contains(method) => Ok(*endpoint),
            Some((_, methods, _)) => Err(Box::new(response::method_not_allowed(methods.allow()))),
            None => Err(Box::new(self.not_found(path))),
        }
    }

    #[cold]
    fn not_found(&self, path: &str) -> FullResponse {
        let endpoints = self.0.iter().map(|(path, methods, _)| {
            let method = methods.allow().split(',').next().unwrap_or_default();
            format!("{method} {path}")
        });
        let endpoints = endpoints.collect::<Vec<_>>().join(", ");
        HttpError::not_found(path).with_hint(format!("the endpoints are {endpoints}")).response()
    }
}
