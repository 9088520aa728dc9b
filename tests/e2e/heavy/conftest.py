from __future__ import annotations

import pytest

pytest.register_assert_rewrite("contracts.engine_contract", "contracts.chat_contract")
