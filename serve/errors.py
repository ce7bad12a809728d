"""What a client is told when something cannot be done, in each dialect's form."""

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error",
                 429: "rate_limit_error", 500: "engine_error", 501: "not_implemented_error",
                 503: "overloaded_error", 504: "timeout_error"}
_ANTHROPIC_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error",
                    413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
                    503: "overloaded_error", 504: "timeout_error"}


class ApiError(Exception):
    """An answer that is an error. param: the member of the request that is to blame."""

    def __init__(self, status, message, param=None, code=None, headers=None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def body(self, dialect="openai"):
        if dialect == "anthropic":
            kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            known = not self.param or self.message.startswith(self.param)
            message = self.message if known else f"{self.param}: {self.message}"
            return {"type": "error", "error": {"type": kind, "message": message}}
        kind = _OPENAI_TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param,
                          "code": self.code}}


def invalid(param, message, code=None):
    return ApiError(400, message, param, code)


def no_images(path, why):
    """Every dialect refuses an image with this, where it stands. why: and what helps."""
    return invalid(path, f"this server sees no images: {why}", "vision_disabled")


def busy(why, retry_after):
    return ApiError(503, why, code="overloaded", headers={"Retry-After": str(retry_after)})
